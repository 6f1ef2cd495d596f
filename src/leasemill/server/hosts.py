"""The check of the names that a server answers to, and of the web pages that may use it.

A page in a browser can send requests to a server on this machine, and a name that it controls can be made to point here
(DNS rebinding). A server without keys would obey. So on loopback the Host header must name this machine, and a request
that a browser marks as coming from another site is refused everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from leasemill.server.address import is_loopback
from leasemill.server.authorizer import RequestHead
from leasemill.wire.problems import Denied, Problem

LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
HOSTS_KNOWN: Final = 100
OWN_SITE: Final = frozenset({"same-origin", "none"})
"""The values of `Sec-Fetch-Site` for requests of our own pages, and for an address that a person typed."""


class Hosts:
    """`names`: besides this machine's own; none and not `is_local`: any name is taken, for proxies and addresses."""

    def __init__(self, *, is_local: bool, names: Iterable[str] = ()) -> None:
        given = frozenset(name.lower().rstrip(".") for name in names)
        self._names = LOCAL | given if is_local or given else None
        self._known: set[str] = set()
        """Headers that were found to be ours: clients send the same one with each request."""

    def check(self, head: RequestHead) -> None:
        host = head.headers.get("host", "")
        if self._names is not None and not self._is_ours(host):
            raise _refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                "host",
                "this server does not serve the name in the Host header: use localhost, or start it with "
                "--allow-host NAME",
            )
        origin, site = head.headers.get("origin"), head.headers.get("sec-fetch-site")
        if (origin is not None and not _is_same(origin, host)) or (site is not None and site not in OWN_SITE):
            raise _refused(HTTPStatus.FORBIDDEN, "origin", "web pages of other sites may not use this server")

    def _is_ours(self, host: str) -> bool:
        assert self._names is not None
        if host in self._known:
            return True
        name = _name(host)
        is_ours = name is not None and (name in self._names or (name not in LOCAL and is_loopback(name)))
        if is_ours and len(self._known) < HOSTS_KNOWN:
            self._known.add(host)
        return is_ours


def _name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if it has none."""
    if not host or any(character in host for character in "/@?#\\ ,"):
        return None
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018  (raises, if it is none)
    except ValueError:
        return None
    return None if parts.hostname is None else parts.hostname.rstrip(".")


def _is_same(origin: str, host: str) -> bool:
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in {"http", "https"} and rest.lower() == host.lower()


def _refused(status: HTTPStatus, field: str, detail: str) -> Denied:
    return Denied(Problem(status.value, status.phrase, "forbidden", detail, field=field))
