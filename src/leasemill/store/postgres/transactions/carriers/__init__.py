"""Which carrier a connection or session of the user's takes: by the name of its type, so that nothing is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from leasemill.errors import Invalid
from leasemill.store.postgres.transactions.carriers.base import AnyCarrier, AsyncCarrier, Carrier

__all__ = ["AnyCarrier", "AsyncCarrier", "Carrier", "carrier_of"]

_HERE: Final = "leasemill.store.postgres.transactions.carriers"
_CARRIERS: Final = {
    "psycopg.Connection": ("psycopg", "PsycopgCarrier"),
    "psycopg.AsyncConnection": ("psycopg", "AsyncPsycopgCarrier"),
    "psycopg2.extensions.connection": ("psycopg2", "Psycopg2Carrier"),
    "django.db.backends.base.base.BaseDatabaseWrapper": ("django", "DjangoCarrier"),
    "django.utils.connection.ConnectionProxy": ("django", "DjangoCarrier"),
    "asyncpg.connection.Connection": ("asyncpg", "AsyncpgCarrier"),
    "asyncpg.pool.PoolConnectionProxy": ("asyncpg", "AsyncpgCarrier"),
    "sqlalchemy.engine.base.Connection": ("sqlalchemy", "ConnectionCarrier"),
    "sqlalchemy.orm.session.Session": ("sqlalchemy", "SessionCarrier"),
    "sqlalchemy.orm.scoping.scoped_session": ("sqlalchemy", "SessionCarrier"),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": ("sqlalchemy", "AsyncConnectionCarrier"),
    "sqlalchemy.ext.asyncio.session.AsyncSession": ("sqlalchemy", "AsyncSessionCarrier"),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": ("sqlalchemy", "AsyncSessionCarrier"),
}
"""By the type's name: the module here, and the class in it."""
_OPENED_BY: Final = {
    "asyncpg.pool.Pool": "async with pool.acquire() as connection",
    "sqlalchemy.engine.base.Engine": "with engine.connect() as connection",
    "sqlalchemy.orm.session.sessionmaker": "with Session() as session",
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": "async with engine.connect() as connection",
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": "async with Session() as session",
}
"""What connections and sessions come from, by the type's name: how one is opened."""


def carrier_of(connection: object) -> AnyCarrier:
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(connection).__mro__]
    for name in names:
        if name in _CARRIERS:
            module, carrier_name = _CARRIERS[name]
            carrier: AnyCarrier = getattr(import_module(f"{_HERE}.{module}"), carrier_name)(connection)
            return carrier
        if name in _OPENED_BY:
            raise Invalid(
                f"this {type(connection).__name__} has no transaction: write `{_OPENED_BY[name]}`, and use that"
            )
    raise Invalid(
        "using() and ctx.commit() take a connection of psycopg, psycopg2, asyncpg, SQLAlchemy or Django, or a session "
        f"of SQLAlchemy, not a {type(connection).__name__}: hand over what your own statements are sent with"
    )
