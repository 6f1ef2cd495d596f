"""Limits as they are read: numbers, who holds places, how many jobs wait. Locks and changes nothing."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import opens_at
from leasemill.kernel.model import LimitRecord, LimitTerms
from leasemill.kernel.verbs.limits import terms_of
from leasemill.store.postgres.limits.snapshot import terms_of_row
from leasemill.store.postgres.steps import Row, Steps, rows


def list_limits(query: c.ListLimits) -> Steps[list[c.LimitView]]:
    return [_view(row) for row in (yield from _listed(query.after, None, query.limit))]


def get_limit(query: c.GetLimit) -> Steps[c.LimitView | None]:
    found = yield from _listed("", query.name, 1)
    if not found:
        return None
    given = {"name": query.name, "key": query.key, "after": query.after, "limit": query.limit}
    terms = terms_of(_record(found[0]))
    keys = tuple(
        c.LimitKeyView(key, held, waiting, tuple(holders), _opens_at(terms, tat, now))
        for key, held, waiting, holders, tat, now in (yield from rows("limit_keys", given))
    )
    return _view(found[0], keys)


def _listed(after: str, name: str | None, limit: int) -> Steps[list[Row]]:
    return (yield from rows("list_limits", {"after": after, "name": name, "limit": limit}))


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
