"""The security of `leasemill serve`, put together: keys, host names, TLS, limits.

What must never happen here: a server that other machines can reach and that asks for no key.
"""

from __future__ import annotations

import logging
import resource
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasemill.errors import Invalid, Refused
from leasemill.server.address import is_loopback
from leasemill.server.hosts import Hosts
from leasemill.server.key_authorizer import KeyAuthorizer
from leasemill.server.keyring import KeyRing
from leasemill.server.limits import ServerLimits
from leasemill.server.protocol import CONNECTIONS, Connected, guarded
from leasemill.store.access_keys import id_of
from leasemill.store.base import Store

log = logging.getLogger("leasemill.server")

OTHER_DESCRIPTORS: Final = 200
"""Descriptors for the store, for threads and for sockets that listen."""
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths for probes, which have no key; they show nothing of the store."""


class Security(NamedTuple):
    """`options`: of uvicorn. `ring` is to be started and closed."""

    authorizer: KeyAuthorizer
    ring: KeyRing
    options: dict[str, Any]


def secured(
    store: Store,
    host: str,
    *,
    requires_keys: bool = False,
    allowed_hosts: Iterable[str] = (),
    certificate: Path | None = None,
    certificate_key: Path | None = None,
    limits: ServerLimits | None = None,
    connections: int = CONNECTIONS,
) -> Security:
    """Return the security of a server of this store that listens on `host`."""
    is_local = is_loopback(host)
    needs_key = requires_keys or not is_local
    tls = _tls(certificate, certificate_key)
    ring = KeyRing(store.keys)
    if needs_key and ring.is_empty:
        reached = "" if is_local else f"other machines can reach {host}, and "
        raise Refused(
            f"{reached}the store has no usable key: create one with "
            f"leasemill keys create NAME --role work --url {store.name}"
            + ("" if is_local else ", or listen on 127.0.0.1 alone")
        )
    if not is_local and not tls:
        log.warning(
            "keys and jobs travel unencrypted: give --cert and --key, "
            "or terminate TLS in a proxy in front of this server"
        )
    authorizer = KeyAuthorizer(
        ring, Hosts(is_local=is_local, names=allowed_hosts), needs_key=needs_key, limits=limits, open_paths=OPEN_PATHS
    )
    options = {
        "http": guarded(Connected(affordable(connections))),
        "proxy_headers": False,
        **tls,
    }
    return Security(authorizer, ring, options)


def affordable(connections: int) -> int:
    """Return how many connections this process has descriptors for; it asks the system for more if it has too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    if granted < wanted:
        log.warning("the open-file limit allows %d connections, not %d: see ulimit -n", granted, connections)
    return max(1, granted - OTHER_DESCRIPTORS)


def _tls(certificate: Path | None, certificate_key: Path | None) -> dict[str, Any]:
    """Load the certificate before the server listens, so that an error is reported at once."""
    if certificate_key is not None and id_of(certificate_key.name) is not None:
        raise Invalid("--key is the private key of --cert, not a key for clients: revoke that one, it was shown")
    if certificate is None:
        if certificate_key is not None:
            raise Invalid("--key is the private key of --cert: give both")
        return {}
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, certificate_key)
    except OSError as error:  # an SSLError is one
        named = certificate if certificate_key is None else f"{certificate} and {certificate_key}"
        raise Invalid(f"{named} cannot be used for TLS: {error.strerror or error}") from None
    return {"ssl_certfile": str(certificate), "ssl_keyfile": None if certificate_key is None else str(certificate_key)}
