"""Limits as they are read: numbers, who holds places, how many jobs wait. Locks and changes nothing."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import opens_at
from leasemill.kernel.model import LimitRecord, LimitTerms
from leasemill.kernel.verbs.limits import terms_of
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.limits.choose import terms_of_row
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection, Row


def list_limits(database: Database, connection: Connection, query: c.ListLimits) -> list[c.LimitView]:
    return [_view(row) for row in _listed(database, connection, query.after, None, query.limit)]


def get_limit(database: Database, connection: Connection, query: c.GetLimit) -> c.LimitView | None:
    rows = _listed(database, connection, "", query.name, 1)
    if not rows:
        return None
    given = {"name": query.name, "key": query.key, "after": query.after, "limit": int8(query.limit)}
    terms = terms_of(_record(rows[0]))
    keys = tuple(
        c.LimitKeyView(key, held, waiting, tuple(holders), _opens_at(terms, tat, now))
        for key, held, waiting, holders, tat, now in database.all(connection, "limit_keys", given)
    )
    return _view(rows[0], keys)


def _listed(database: Database, connection: Connection, after: str, name: str | None, limit: int) -> list[Row]:
    return database.all(connection, "list_limits", {"after": after, "name": name, "limit": int8(limit)})


def _view(row: Row, keys: tuple[c.LimitKeyView, ...] = ()) -> c.LimitView:
    held, waiting, holders, tat, now = row[8:]
    record = _record(row)
    terms = terms_of(record)
    return c.LimitView(
        record.name, terms, record, held, waiting, tuple(holders or ()), _opens_at(terms, tat, now), keys
    )


def _record(row: Row) -> LimitRecord:
    name, declared, declared_at, declared_by, set_terms, set_at, set_by, reason = row[:8]
    return LimitRecord(
        name, terms_of_row(declared), declared_at, declared_by, terms_of_row(set_terms), set_at, set_by, reason
    )


def _opens_at(terms: LimitTerms, tat: int | None, now: int) -> int | None:
    at = opens_at(terms, tat) if tat else 0
    return at if at > now else None
