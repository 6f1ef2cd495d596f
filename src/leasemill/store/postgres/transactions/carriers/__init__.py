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
}
"""By the type's name: the module here, and the class in it."""


def carrier_of(connection: object) -> AnyCarrier:
    for kind in type(connection).__mro__:
        found = _CARRIERS.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            module, name = found
            carrier: AnyCarrier = getattr(import_module(f"{_HERE}.{module}"), name)(connection)
            return carrier
    raise Invalid(
        f"using() and ctx.commit() take a connection of psycopg or psycopg2, not a {type(connection).__name__}: "
        "hand over what your own statements are sent with"
    )
