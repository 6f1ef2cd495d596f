"""Calls by httpx: those that wait, many in one event loop, and all of them where the environment names a proxy."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from leasemill.store.http.connection import CONNECT_S, IDLE_CONNECTIONS, IDLE_S, Response
from leasemill.store.http.retry_policy import CallFailed
from leasemill.wire.routes import PREFIX

NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class OthersRequests(logging.Filter):
    """httpx logs every request, and a worker that waits for jobs sends one a second: these are not logged, those of
    the program itself are."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        url = record.args[1] if isinstance(record.args, tuple) and len(record.args) > 1 else ""
        return not any(str(url).startswith(base) for base in self.servers)


_OTHERS: Final = OthersRequests()
logging.getLogger("httpx").addFilter(_OTHERS)


def has_proxy(base: str) -> bool:
    """Whether the environment names a proxy for this server."""
    parts, proxies = urlsplit(base), getproxies()
    return bool({parts.scheme, "all"} & proxies.keys()) and not proxy_bypass(parts.netloc)


def trusted() -> ssl.SSLContext:
    """Return a context with the certificates that httpx trusts, SSL_CERT_FILE and SSL_CERT_DIR included."""
    return httpx.create_ssl_context()


class ProxiedCalls:
    """Calls of threads, through a proxy."""

    def __init__(self, base: str, answer_s: float) -> None:
        self._base = base
        self._client = httpx.Client(**_options(base), timeout=_timeout(answer_s))

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        try:
            response = self._client.post(self._base + path, content=body, headers=dict(headers))
        except (httpx.RequestError, RuntimeError) as error:  # it raises the latter when it was closed
            raise failure_of(error) from None
        return Response(response.status_code, response.headers, response.content)

    def close(self) -> None:
        self._client.close()

    def abandon(self) -> None:
        """Do nothing in a forked child: the connections are the parent's, and so are the locks."""


class WaitingCalls:
    """Calls of one event loop, of which many wait at a time."""

    def __init__(self, base: str, answer_s: float) -> None:
        self._base = base
        self._answer_s = answer_s
        self._client = httpx.AsyncClient(**_options(base))

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, wait_s: float) -> Response:
        timeout = _timeout(wait_s + self._answer_s)
        try:
            response = await self._client.post(self._base + path, content=body, headers=dict(headers), timeout=timeout)
        except httpx.RequestError as error:
            raise failure_of(error) from None
        return Response(response.status_code, response.headers, response.content)

    async def close(self) -> None:
        await self._client.aclose()


def failure_of(error: Exception) -> CallFailed:
    return CallFailed(error, was_sent=not isinstance(error, NOT_SENT))


def _options(base: str) -> dict[str, Any]:
    _OTHERS.servers.add(base + PREFIX)
    is_encrypted = base.startswith("https:")  # where it is not, certificates are read in vain
    return {
        "limits": httpx.Limits(
            max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=IDLE_S
        ),
        "follow_redirects": False,
        "verify": is_encrypted,
    }


def _timeout(answer_s: float) -> httpx.Timeout:
    return httpx.Timeout(answer_s, connect=CONNECT_S)
