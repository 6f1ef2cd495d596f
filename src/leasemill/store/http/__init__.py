"""`http://` and `https://`: the store behind a server (`leasemill serve`), for whoever cannot reach it directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasemill.errors import Invalid

if TYPE_CHECKING:
    from leasemill.store.http.store import HttpStore


def open_http(url: str) -> HttpStore:
    try:
        from leasemill.store.http.store import HttpStore
    except ModuleNotFoundError as error:
        if error.name not in {"httptools", "httpx"}:
            raise
        raise Invalid("http:// needs httptools and httpx: pip install 'leasemill[http]'") from None
    return HttpStore(url)
