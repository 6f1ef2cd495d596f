"""Which adapter a connection or session of the user's takes: by the name of its type, so that nothing is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from leasemill.errors import Invalid
from leasemill.store.postgres.transactions.adapters.base import AnyUserConnection, AsyncUserConnection, UserConnection

__all__ = ["AnyUserConnection", "AsyncUserConnection", "UserConnection", "adapter_of"]

_HERE: Final = "leasemill.store.postgres.transactions.adapters"
_ADAPTERS: Final = {
    "psycopg.Connection": ("psycopg", "PsycopgAdapter"),
    "psycopg.AsyncConnection": ("psycopg", "AsyncPsycopgAdapter"),
    "psycopg2.extensions.connection": ("psycopg2", "Psycopg2Adapter"),
    "django.db.backends.base.base.BaseDatabaseWrapper": ("django", "DjangoAdapter"),
    "django.utils.connection.ConnectionProxy": ("django", "DjangoAdapter"),
    "asyncpg.connection.Connection": ("asyncpg", "AsyncpgAdapter"),
    "asyncpg.pool.PoolConnectionProxy": ("asyncpg", "AsyncpgAdapter"),
    "sqlalchemy.engine.base.Connection": ("sqlalchemy", "ConnectionAdapter"),
    "sqlalchemy.orm.session.Session": ("sqlalchemy", "SessionAdapter"),
    "sqlalchemy.orm.scoping.scoped_session": ("sqlalchemy", "SessionAdapter"),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": ("sqlalchemy", "AsyncConnectionAdapter"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": ("sqlalchemy", "AsyncSessionAdapter"),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": ("sqlalchemy", "AsyncSessionAdapter"),
}
"""By the type's name: the module here, and the class in it."""
_OPENED_BY: Final = {
    "asyncpg.pool.Pool": "async with pool.acquire() as connection",
    "sqlalchemy.engine.base.Engine": "with engine.connect() as connection",
    "sqlalchemy.orm.session.sessionmaker": "with Session() as session",
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": "async with engine.connect() as connection",
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": "async with Session() as session",
}
"""The callables that open connections and sessions, by the names of their types."""


def adapter_of(connection: object) -> AnyUserConnection:
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__]
    for name in names:
        if name in _ADAPTERS:
            module, adapter_name = _ADAPTERS[name]
            adapter: AnyUserConnection = getattr(import_module(f"{_HERE}.{module}"), adapter_name)(connection)
            return adapter
        if name in _OPENED_BY:
            raise Invalid(
                f"this {type(connection).__name__} has no transaction: write `{_OPENED_BY[name]}`, and use that"
            )
    raise Invalid(
        "using() and ctx.commit() take a connection of psycopg, psycopg2, asyncpg, SQLAlchemy or Django, or a session "
        f"of SQLAlchemy, not a {type(connection).__name__}: hand over what your own statements are sent with"
    )
