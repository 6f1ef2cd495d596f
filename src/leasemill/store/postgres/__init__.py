"""`postgresql://` the contract on PostgreSQL: any number of machines. See docs/postgres.md."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from leasemill.errors import Invalid

if TYPE_CHECKING:
    from leasemill.store.postgres.store import PostgresStore


def open_postgres(url: str) -> PostgresStore:
    """The store a URL names; psycopg is imported here and not before."""
    if importlib.util.find_spec("psycopg") is None:
        raise Invalid("postgresql:// needs psycopg: pip install 'leasemill[postgres]'")
    from leasemill.store.postgres.store import PostgresStore

    return PostgresStore(url)
