"""The terms of limits, set by operators or declared by code, and how far rates are used. Rules T6, T10, T13 and T14."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.bounds import LONGEST_US, check_batch, check_name, check_number, check_text
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import LimitCleared, LimitDeclared, LimitSet, RateCharged, RateHeld
from leasemill.kernel.index.limit_index import NO_TERMS, NamedLimit, cut
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, LimitRecord, LimitTerms, QueueMode, Verb
from leasemill.kernel.state import State, drop_idle
from leasemill.kernel.transitions.actions import DECLARED, check_operator, record

__all__ = ["ClearLimit", "DeclareLimits", "DeclaredLimit", "SetLimit"]

MOST_PLACES: Final = 1_000_000
MOST_BURST: Final = 1_000_000

RATE_KEPT_US: Final = 60 * SECOND
"""The time for which an unused rate is remembered: a clock that goes back by less gives no grants (T15)."""


class SetLimit(Command[None], frozen=True):
    """An operator's numbers come before those of code until they are cleared. What `terms` leaves out stays."""

    name: str
    terms: LimitTerms
    by: str
    reason: str


class ClearLimit(Command[None], frozen=True):
    """Drop what operators have set."""

    name: str
    by: str
    reason: str


class DeclaredLimit(Struct, frozen=True):
    name: str
    terms: LimitTerms


class DeclareLimits(Command[None], frozen=True):
    """Declare the limits of a worker's code, at its start. A limit that it does not name is not changed."""

    limits: Sequence[DeclaredLimit]
    by: str


def check_set(command: SetLimit) -> None:
    check_limit_name(command.name)
    check_operator(command)
    check_terms(command.name, command.terms)
    if command.terms == NO_TERMS:
        raise Invalid(f"limit {command.name!r} is set without numbers: give places or a rate, or clear it")
    if command.name.startswith(QUEUE_LIMIT) and command.terms.rate is not None:
        raise Invalid(f"{command.name!r}: a queue's limit has places; give the rate to a limit that its jobs name")


def check_clear(command: ClearLimit) -> None:
    check_limit_name(command.name)
    check_operator(command)


def check_declare(command: DeclareLimits) -> None:
    check_text("who declares limits", command.by)
    check_batch(command.limits)
    for limit in command.limits:
        check_declared_name(limit.name)
        check_terms(limit.name, limit.terms)
        if limit.terms == NO_TERMS:
            raise Invalid(f"limit {limit.name!r} is declared without numbers: give places or a rate")
    if len({limit.name for limit in command.limits}) < len(command.limits):
        raise Invalid("a limit is declared twice in one call: declare each name once")


def check_declared_name(name: str) -> None:
    check_name("limit", name)
    if name.startswith(QUEUE_LIMIT):
        raise Invalid(f"limit {name!r}: names that begin with {QUEUE_LIMIT!r} are the queues' own")


def check_limit_name(name: str) -> None:
    if name.startswith(QUEUE_LIMIT):
        check_name("queue", name.removeprefix(QUEUE_LIMIT))
    else:
        check_name("limit", name)


def check_terms(name: str, terms: LimitTerms) -> None:
    if terms.places is not None:
        check_number(f"places of limit {name!r}", terms.places, 0, MOST_PLACES)
    if terms.rate is None:
        if terms.per_us is not None or terms.burst is not None:
            raise Invalid(f"limit {name!r} has a burst or a period but no rate: give the rate too")
        return
    if terms.per_us is None:
        raise Invalid(f"limit {name!r} has a rate but no period: give per_us too")
    check_number(f"per_us of limit {name!r}", terms.per_us, 1, LONGEST_US)
    check_number(f"rate of limit {name!r} (one in a microsecond at most)", terms.rate, 1, terms.per_us)
    if terms.burst is not None:
        check_number(f"burst of limit {name!r}", terms.burst, 1, MOST_BURST)


# Deciding ------------------------------------------------------------------------------------------------------


def decide_set(state: State, command: SetLimit, now: int) -> Decision[None]:
    name = command.name
    queue = state.queues.get(name.removeprefix(QUEUE_LIMIT)) if name.startswith(QUEUE_LIMIT) else None
    if queue is not None and queue.mode is QueueMode.ACQUIRE:
        raise QueueRefused(
            f"queue {queue.name!r} is used with acquire, where the caller decides what runs; limit another queue"
        )
    known = _record(state, name).set
    terms = merged(command.terms, known)
    if terms == known:
        return (), None
    return (LimitSet(name, now, command.by, command.reason, terms),), None


def decide_clear(state: State, command: ClearLimit, now: int) -> Decision[None]:
    if _record(state, command.name).set is None:
        return (), None
    return (LimitCleared(command.name, now, command.by, command.reason),), None


def decide_declare(state: State, command: DeclareLimits, now: int) -> Decision[None]:
    return tuple(
        LimitDeclared(limit.name, now, command.by, DECLARED, limit.terms)
        for limit in command.limits
        if _record(state, limit.name).declared != limit.terms
    ), None


def _record(state: State, name: str) -> LimitRecord:
    limit = state.limits.get(name)
    return LimitRecord(name) if limit is None or limit.record is None else limit.record


def merged(first: LimitTerms, second: LimitTerms | None) -> LimitTerms:
    """The first, and the second where the first leaves a choice: of the places, and of the rate with its burst."""
    if second is None:
        return first
    places = second.places if first.places is None else first.places
    rate = second if first.rate is None else first
    return LimitTerms(places, rate.rate, rate.per_us, rate.burst)


def terms_of(record: LimitRecord) -> LimitTerms:
    """T6: the operator's numbers, else those of code."""
    return merged(record.set or NO_TERMS, record.declared)


# Applying ------------------------------------------------------------------------------------------------------


def apply_set(state: State, event: LimitSet) -> None:
    known = _record(state, event.name)
    _keep(
        state,
        replace(known, set=event.terms, set_at=event.at, set_by=event.by, reason=event.reason),
        event.at,
    )
    record(state, Verb.SET_LIMIT, event.name, event)


def apply_cleared(state: State, event: LimitCleared) -> None:
    known = _record(state, event.name)
    _keep(state, replace(known, set=None, set_at=None, set_by=None, reason=None), event.at)
    record(state, Verb.CLEAR_LIMIT, event.name, event)


def apply_declared(state: State, event: LimitDeclared) -> None:
    known = _record(state, event.name)
    _keep(state, replace(known, declared=event.terms, declared_at=event.at, declared_by=event.by), event.at)
    record(state, Verb.DECLARE_LIMIT, event.name, event)


def _keep(state: State, new: LimitRecord, at: int) -> None:
    limit = state.limit(new.name)
    terms = limit.terms
    restore_record(state, limit, new)
    for tally in list(limit.tallies.values()):
        if tally.tat and _rate(terms) != _rate(limit.terms):
            move_tat(state, tally.limit.name, tally.key, cut(limit.terms, tally.tat, at))  # T14
        tally.reopen()  # T6: for the claims that follow
    if limit.is_idle():
        del state.limits[limit.name]


def _rate(terms: LimitTerms) -> tuple[int | None, ...]:
    return terms.rate, terms.per_us, terms.burst


def restore_record(state: State, limit: NamedLimit, new: LimitRecord) -> None:
    is_empty = new.declared is None and new.set is None
    limit.record = None if is_empty else new
    limit.terms = terms_of(new)
    if limit.name.startswith(QUEUE_LIMIT):
        queue = state.queues.get(limit.name.removeprefix(QUEUE_LIMIT))
        if queue is not None:
            queue.limit = None if is_empty else limit


def apply_charged(state: State, event: RateCharged | RateHeld) -> None:
    move_tat(state, event.name, event.key, event.tat)
    _forget_rates(state, event.at - RATE_KEPT_US)


def move_tat(state: State, name: str, key: str | None, tat: int) -> None:
    tally = state.limit(name).tally(key)
    if tally.tat == 0 or tat < tally.tat:
        heappush(state.rates, (tat, name, key is not None, key or ""))
    tally.tat = tat


def _forget_rates(state: State, until: int) -> None:
    """A rate that is not in use costs nothing."""
    rates = state.rates
    while rates and rates[0][0] <= until:
        _, name, has_key, key = heappop(rates)
        limit = state.limits.get(name)
        tally = None if limit is None else limit.tallies.get(key if has_key else None)
        if tally is None or tally.tat == 0:
            continue
        if tally.tat > until:
            heappush(rates, (tally.tat, name, has_key, key))
        else:
            tally.tat = 0
            drop_idle(state, tally)
