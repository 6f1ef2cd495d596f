"""T13: a handler was throttled, and nothing is granted under that limit for a while."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import held_until
from leasemill.kernel.model import LimitRecord
from leasemill.kernel.verbs.limits import terms_of
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.limits.choose import terms_of_row
from leasemill.store.postgres.wire.arrays import int8s, texts
from leasemill.store.postgres.wire.connections import Connection

_encode = msgspec.json.Encoder().encode


def lock(database: Database, connection: Connection, reports: Sequence[c.ReleaseReport]) -> None:
    """The limits that these hold up, in the transaction that is open: before anything else is locked."""
    names = texts(sorted({one.limit for one in reports if one.limit}))
    database.all(connection, "lock_names", {"names": names})


def hold(database: Database, connection: Connection, reports: Sequence[c.ReleaseReport]) -> None:
    """Of jobs that were released in the transaction that is open."""
    if not reports:
        return
    given = {
        "ids": texts([one.job_id for one in reports]),
        "names": texts([one.limit for one in reports]),
        "holds": int8s([one.hold_us for one in reports]),
    }
    tats: dict[tuple[str, str], int] = {}
    for name, key, hold_us, declared, set_terms, tat, now in database.all(connection, "load_held", given):
        terms = terms_of(LimitRecord(name, terms_of_row(declared), set=terms_of_row(set_terms)))
        tats[name, key] = held_until(terms, max(tat, tats.get((name, key), 0)), now + hold_us)
    rates = [{"name": name, "key": key, "tat": tat} for (name, key), tat in tats.items()]
    database.do(connection, "hold_rates", {"rates": _encode(rates).decode()})
    if not database.has_rules:
        database.do(connection, "use_rules", {})
