"""Changes of limits, by operators and by code: decided by the kernel, under the locks of the limits."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import NO_TERMS, held_until, interval_us
from leasemill.kernel.machine import run
from leasemill.kernel.model import QUEUE_LIMIT, LimitRecord, LimitTerms
from leasemill.kernel.state import State
from leasemill.kernel.verbs.limits import restore_record, terms_of
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.exact.save import save_actions
from leasemill.store.postgres.known import Known
from leasemill.store.postgres.limits.snapshot import terms_of_row
from leasemill.store.postgres.rows.tables import QueueUse
from leasemill.store.postgres.rows.values import mode_of
from leasemill.store.postgres.steps import Steps, Verb, row, rows, transact, transaction

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


def change(context: VerbContext, command: c.SetLimit | c.ClearLimit | c.DeclareLimits) -> Verb[None]:
    names = [limit.name for limit in command.limits] if isinstance(command, c.DeclareLimits) else [command.name]
    if not names:
        return
    known = context.known
    yield from transact(lambda _: transaction(_change(known, command, names)))
    known.has_rules = True
    yield from context.notifier.wake()  # T6: what waited may be claimable


def _change(known: Known, command: c.Command[None], names: Sequence[str]) -> Steps[None]:
    given = {"names": names}
    yield from rows("lock_names", given)
    now, records, modes, limited = yield from row("load_records", given)
    state, before = State(), dict[str, LimitTerms]()
    for name, mode in _modes(modes or "[]"):
        state.queue(name).mode = mode_of(mode)
    for one in _records(records or "[]"):
        record = record_of(one)
        before[one.name] = terms_of(record)
        restore_record(state, state.limit(one.name), record)
    events, _ = run(state, command, now)
    if not events:
        return
    if not known.has_rules:
        yield from rows("use_rules", {})
    for name in names:
        if name.startswith(QUEUE_LIMIT):
            yield from _limit_queue(known, name.removeprefix(QUEUE_LIMIT), is_new=not limited)
    written = [_row(state, name, before.get(name, NO_TERMS), now) for name in names]
    yield from rows("keep_limits", {"records": _encode(written).decode()})
    yield from save_actions(known.schema, state)


def _limit_queue(known: Known, queue: str, *, is_new: bool) -> Steps[None]:
    given = {"queue": queue}
    if is_new:  # no claim may be under way that does not know of it
        yield from rows("lock_leases", {})
        yield from rows("limit_queue", given)
    yield from rows("count_leases", given)
    known.limited_queues.add(queue)


# Limits that a throttled handler holds up (T13) ----------------------------------------------------------------------


def lock_held(reports: Sequence[c.ReleaseReport]) -> Steps[None]:
    """The limits that these hold up, in the transaction that is open: before anything else is locked."""
    yield from rows("lock_names", {"names": sorted({one.limit for one in reports if one.limit})})


def hold_rates(known: Known, reports: Sequence[c.ReleaseReport]) -> Steps[None]:
    """Grant nothing under the limits of these jobs for a while. They were released in the transaction that is open."""
    if not reports:
        return
    given = {
        "ids": [one.job_id for one in reports],
        "names": [one.limit for one in reports],
        "holds": [one.hold_us for one in reports],
    }
    tats: dict[tuple[str, str], int] = {}
    for name, key, hold_us, declared, set_terms, tat, now in (yield from rows("load_held", given)):
        terms = terms_of(LimitRecord(name, terms_of_row(declared), set=terms_of_row(set_terms)))
        tats[name, key] = held_until(terms, max(tat, tats.get((name, key), 0)), now + hold_us)
    rates = [{"name": name, "key": key, "tat": tat} for (name, key), tat in tats.items()]
    yield from rows("hold_rates", {"rates": _encode(rates).decode()})
    if not known.has_rules:
        yield from rows("use_rules", {})


# Rows ----------------------------------------------------------------------------------------------------------------


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
