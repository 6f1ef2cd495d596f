"""What operators and code say about limits: decided by the kernel, under the locks of the limits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import NO_TERMS, interval_us
from leasemill.kernel.machine import run
from leasemill.kernel.model import QUEUE_LIMIT, LimitRecord, LimitTerms
from leasemill.kernel.state import State
from leasemill.kernel.verbs.limits import restore_record, terms_of
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.change import Change
from leasemill.store.postgres.exact.save import saving
from leasemill.store.postgres.exact.tables import QueueUse, action_row
from leasemill.store.postgres.exact.values import mode_of
from leasemill.store.postgres.limits.choose import terms_of_row
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import texts
from leasemill.store.postgres.wire.connections import Connection

_encode = msgspec.json.Encoder().encode


class LimitRow(Struct):
    """A row of limits."""

    name: str
    declared: list[int | None] | None = None
    declared_at: int | None = None
    declared_by: str | None = None
    set: list[int | None] | None = None
    set_at: int | None = None
    set_by: str | None = None
    reason: str | None = None
    most_tat: int | None = None
    """T14: rates under this limit are used no further."""


_records = msgspec.json.Decoder(list[LimitRow]).decode
_modes = msgspec.json.Decoder(list[tuple[str, QueueUse | None]]).decode


def change(calls: Calls, command: c.SetLimit | c.ClearLimit | c.DeclareLimits) -> None:
    names = [limit.name for limit in command.limits] if isinstance(command, c.DeclareLimits) else [command.name]
    if not names:
        return
    database = calls.database

    def work(connection: Connection) -> None:
        with connection.transaction():
            _change(database, connection, command, names)

    calls.connections.run(work)
    database.has_rules = True
    calls.wake()  # T6: what waited may be claimable


def _change(database: Database, connection: Connection, command: c.Command[None], names: Sequence[str]) -> None:
    given = {"names": texts(names)}
    database.all(connection, "lock_names", given)
    now, records, modes, limited = database.one(connection, "load_records", given)
    state, before = State(), dict[str, LimitTerms]()
    for name, mode in _modes(modes or "[]"):
        state.queue(name).mode = mode_of(mode)
    for row in _records(records or "[]"):
        record = record_of(row)
        before[row.name] = terms_of(record)
        restore_record(state, state.limit(row.name), record)
    events, _ = run(state, command, now)
    if not events:
        return
    if not database.has_rules:
        database.do(connection, "use_rules", {})
    for name in names:
        if name.startswith(QUEUE_LIMIT):
            _limit_queue(database, connection, name.removeprefix(QUEUE_LIMIT), is_new=not limited)
    rows = [_row(state, name, before.get(name, NO_TERMS), now) for name in names]
    database.do(connection, "keep_limits", {"records": _encode(rows).decode()})
    actions = [action_row(one) for one in state.actions]
    made = saving(database.statements.schema, Change({}, {"actions": list(actions)}, [], []), [], None)
    assert made is not None
    batch.run(connection, made)


def _limit_queue(database: Database, connection: Connection, queue: str, *, is_new: bool) -> None:
    given = {"queue": queue}
    if is_new:  # no claim may be under way that does not know of it
        schema = database.statements.schema
        connection.execute(f'lock table "{schema}".leases in share row exclusive mode'.encode())
        database.do(connection, "limit_queue", given)
    database.do(connection, "count_leases", given)
    database.limited_queues.add(queue)


def record_of(row: LimitRow) -> LimitRecord:
    return LimitRecord(
        row.name,
        terms_of_row(row.declared),
        row.declared_at,
        row.declared_by,
        terms_of_row(row.set),
        row.set_at,
        row.set_by,
        row.reason,
    )


def _row(state: State, name: str, before: LimitTerms, now: int) -> LimitRow:
    limit = state.limits.get(name)
    record = None if limit is None else limit.record
    if limit is None or record is None:
        row, terms = LimitRow(name), NO_TERMS
    else:
        terms = limit.terms
        row = LimitRow(
            name,
            _numbers(record.declared),
            record.declared_at,
            record.declared_by,
            _numbers(record.set),
            record.set_at,
            record.set_by,
            record.reason,
        )
    if _rate(before) != _rate(terms):
        row.most_tat = now + (terms.burst or 1) * interval_us(terms)
    return row


def _rate(terms: LimitTerms) -> tuple[int | None, ...]:
    return terms.rate, terms.per_us, terms.burst


def _numbers(terms: LimitTerms | None) -> list[int | None] | None:
    return None if terms is None else [terms.places, terms.rate, terms.per_us, terms.burst]
