"""Opening the store that a URL names. Each kind of store is imported when it is first opened."""

from __future__ import annotations

import sys

from leasemill.errors import Invalid, Refused
from leasemill.store.base import Store
from leasemill.store.url import hidden_password


def open_store(url: str) -> Store:
    """Open the store a URL names: `file:PATH` (a folder), `postgresql://…`, `http://…` (a server), `memory:`."""
    scheme, separator, _ = url.partition(":")
    if scheme == "file" and separator:
        if sys.platform == "win32":
            raise Refused("a file: store needs Linux or macOS: use postgresql://, or memory: for tests")
        from leasemill.store.file.store import open_folder

        return open_folder(url)
    if scheme == "memory" and separator:
        from leasemill.store.memory import MemoryStore

        return MemoryStore()
    if scheme in {"postgresql", "postgres"} and separator:
        from leasemill.store.postgres import open_postgres

        return open_postgres(url)
    if scheme in {"http", "https"} and separator:
        from leasemill.store.http import open_http

        return open_http(url)
    if scheme.startswith("postgresql+"):
        raise Invalid(f"{hidden_password(url)!r} is a URL of SQLAlchemy: leave out the driver, postgresql://…")
    raise Invalid(
        f"{hidden_password(url)!r} is not the URL of a store: write file:PATH, memory:, "
        "postgresql://user@host/database or http://host:port"
    )
