"""A command decided by the kernel, on the rows it concerns, under their locks: one transaction, two round trips.

Lock and load are sent together, and so are save and COMMIT. What is loaded becomes a small `State`; the kernel decides
and applies; the difference is written. So a rule that is not in SQL is not written twice either. What must never happen
here: a decision of its own, or a write to a row that was not locked or checked (`RetryTransaction`: try again).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent, ExecutionCommitted, JobCancelled, JobEnqueued
from leasemill.kernel.machine import run
from leasemill.kernel.model import JobSpec, QueueMode
from leasemill.kernel.state import LaneKey, State
from leasemill.kernel.transitions.executions import ended_jobs
from leasemill.kernel.transitions.unique import QueueKey
from leasemill.kernel.verbs.cancel import cancels_a_run
from leasemill.kernel.verbs.expire import MAY_EXPIRE, expirations
from leasemill.store.postgres.admission import admission, lock, lock_admission
from leasemill.store.postgres.exact.change import (
    Change,
    Locked,
    as_stored,
    check_locked,
    difference,
    is_behind,
    table_rows,
)
from leasemill.store.postgres.exact.groups import take_out
from leasemill.store.postgres.exact.keys import TAKES_KEYS, Keys, lock_keys, take_caused
from leasemill.store.postgres.exact.load import BASE, Loaded, LoadedState, kernel_state, loaded_from
from leasemill.store.postgres.exact.save import saving
from leasemill.store.postgres.insert import insert_caused
from leasemill.store.postgres.known import KNOWN_SINCE, RUN_CANCELLED, Known
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, COMMIT, ROLLBACK, RetryTransaction, Steps, row, rows, send

AnswerT = TypeVar("AnswerT")
OutcomeT = TypeVar("OutcomeT")
Expired: TypeAlias = list[c.Expiration]
ADMISSION_TRIES: Final = 20
LONGEST_WAIT_MS: Final = 900
"""For transactions that add members to a group that is sealed: less than a deadlock takes to be noticed."""
JOINS_LEFT: Final = 100


class Decide(Protocol):
    """Decides a command on the state that is loaded."""

    def __call__(self, command: c.Command[OutcomeT], /) -> OutcomeT: ...


Decision: TypeAlias = Callable[[Decide], AnswerT]
"""One command, or several as one fact."""


class LockSet(NamedTuple):
    """Which jobs, lanes and queues a command is about, and no others."""

    ids: Sequence[str] = ()
    lanes: Sequence[LaneKey] = ()
    queues: Sequence[str] = ()
    makes_lanes: bool = False
    """Jobs may be added to the lanes, or put back into them."""
    groups: Sequence[str] = ()
    """Beside those of the jobs."""
    keys: Sequence[QueueKey] = ()
    """Unique keys with their queues; others that a decision needs are found by deciding."""

    def knowing(self, more: MoreRowsNeeded) -> LockSet:
        return self._replace(ids=[*self.ids, *more.ids], keys=[*self.keys, *more.keys])

    def parameters(self, holders: Sequence[str]) -> dict[str, Any]:
        """`holders`: the jobs that took its keys last."""
        ids = [*self.ids, *holders]
        lane_queues, lanes = [queue for queue, _ in self.lanes], [lane for _, lane in self.lanes]
        return {
            "ids": list(dict.fromkeys(ids)),
            "lane_queues": lane_queues,
            "lanes": lanes,
            "queues": self.queues,
            "makes_lanes": self.makes_lanes,
            "draws": len(ids) if self.makes_lanes else 0,
            "groups": self.groups,
        }


_locked = msgspec.json.Decoder(Locked).decode


class MoreRowsNeeded(RetryTransaction):
    """A job that an end was to enqueue is there already (E5), or a unique key is concerned: decide again with it."""

    def __init__(self, ids: Sequence[str] = (), keys: Iterable[QueueKey] = ()) -> None:
        self.ids, self.keys = ids, sorted(keys)
        names = ", ".join(key for _, key in self.keys)
        super().__init__(f"jobs {', '.join(ids)} or unique keys {names} were not known to be concerned")


def decide(known: Known, command: c.Command[AnswerT], lock_set: LockSet) -> Steps[AnswerT]:
    return decide_all(known, lambda run: run(command), lock_set)


def decide_all(known: Known, decision: Decision[AnswerT], lock_set: LockSet) -> Steps[AnswerT]:
    """Several commands as one fact, each on the state that the one before it left."""
    while True:
        try:
            locked, loaded, keys = yield from _lock_and_load(known, lock_set)
            return (yield from _decide(known, decision, locked, loaded, keys))
        except MoreRowsNeeded as more:
            yield from send(ROLLBACK)
            lock_set = lock_set.knowing(more)


def decide_group(known: Known, command: c.Command[AnswerT], lock_set: LockSet) -> Steps[AnswerT]:
    """Alone with a group: nobody is adding members to it. It may concern jobs and keys that are there."""
    while True:
        try:
            keys, begin = yield from lock_keys(lock_set.keys)
            given = lock_set.parameters(keys.holders)
            *_, groups, _, _, ((document,),) = yield from send(
                *begin,
                Execute("lock_groups", given),
                Execute("lock_timeout", {"milliseconds": str(LONGEST_WAIT_MS)}),
                Execute("lock_members", given),
                Execute("load", given),
            )
            locked = Locked([], [], 0, [one for (one,) in groups])
            return (yield from _decide(known, lambda run: run(command), locked, loaded_from(document), keys))
        except MoreRowsNeeded as more:
            yield from send(ROLLBACK)
            lock_set = lock_set.knowing(more)


def decide_expired(
    known: Known, command: c.Expire, given: Mapping[str, Any], longest_wait_ms: int | None = None
) -> Steps[Expired]:
    """The jobs are those that a statement finds, with their lanes; it has locked both."""
    finding = [Execute("expired", given)]
    if longest_wait_ms is not None:
        finding.insert(0, Execute("lock_timeout", {"milliseconds": str(longest_wait_ms)}))
    lock_set = LockSet()
    while True:
        try:
            return (yield from _decide_expired(known, command, finding, lock_set))
        except MoreRowsNeeded as more:
            yield from send(ROLLBACK)
            lock_set = lock_set.knowing(more)


def _decide_expired(known: Known, command: c.Expire, finding: Sequence[Execute], lock_set: LockSet) -> Steps[Expired]:
    keys, begin = yield from lock_keys(lock_set.keys)
    *_, found = yield from send(*begin, *finding)
    if not found:
        yield from send(COMMIT)
        return run(State(), command, 0)[1]
    lock_set = lock_set._replace(ids=[*(job_id for job_id, *_ in found), *lock_set.ids])
    lanes = [(queue, lane) for _, _, queue, lane, _ in found if lane is not None]
    groups = {group for *_, group in found if group is not None}
    locked = Locked(lanes, [no for _, no, *_ in found], 0, [])
    if groups:
        locked.groups = [one for (one,) in (yield from rows("lock_groups", {"groups": sorted(groups)}))]
    (document,) = yield from row("load", lock_set.parameters(keys.holders))
    return (yield from _decide(known, lambda run: run(command), locked, loaded_from(document), keys))


def _lock_and_load(known: Known, lock_set: LockSet) -> Steps[tuple[Locked, Loaded, Keys]]:
    """In a transaction that is open from then on. None of the jobs waits for admission any more: who does has no place
    in its lane yet, on which a decision could be made."""
    # Locks are taken in one order for all callers (keys, lanes, jobs, groups), and only then is anything read: the
    # state that `load` returns cannot change before COMMIT.
    for _ in range(ADMISSION_TRIES):
        keys, begin = yield from lock_keys(lock_set.keys)
        given = lock_set.parameters(keys.holders)
        *_, ((locked,),), ((document,),) = yield from send(*begin, Execute("lock", given), Execute("load", given))
        loaded = loaded_from(document)
        if not loaded.has_arrived:
            return _locked(locked), loaded, keys
        yield from send(ROLLBACK)
        # The lanes are locked between the two, for an admission passes over those that others have locked.
        locks = lock_admission(known), Execute("lock", given)
        *_, admitted, _ = yield from send(BEGIN, *locks, *admission(known), COMMIT)
        known.positions.lower(admitted)
    raise RetryTransaction("jobs wait for their admission")


def _decide(known: Known, decision: Decision[AnswerT], locked: Locked, loaded: Loaded, keys: Keys) -> Steps[AnswerT]:
    """Decide on what is loaded, write the difference, and end the transaction."""
    # The kernel decides on a state that holds only what was locked and loaded. It counts new numbers up from BASE; real
    # ones were drawn from the sequences while loading and are put in afterwards, so that deciding needs no connection.
    # What is written is the difference between the rows before and after: the kernel's events are not translated one by
    # one, and a rule that changes needs no SQL here.
    part = kernel_state(loaded)
    for key, taken in keys.taken:
        part.state.keys.put(key, taken)
    parked = {one.no: one for one in loaded.parked or ()}
    before = as_stored(table_rows(*part, parked), loaded.lanes, loaded.queues)
    queues = set(part.state.queues)
    events: list[AnyEvent] = []

    def decided(command: c.Command[OutcomeT], /) -> OutcomeT:
        made, outcome = run(part.state, command, loaded.now)
        events.extend(made)
        return outcome

    answer = decision(decided)
    kinds = {type(event) for event in events}
    if ExecutionCommitted in kinds:
        raise RetryTransaction("the lease is held after all: commit on the fast path")
    if not kinds.isdisjoint(TAKES_KEYS) and (missing := keys.missing(part.state, events)):
        raise MoreRowsNeeded(keys=missing)
    following = [event.job for event in events if isinstance(event, JobEnqueued) and event.job.offset is None]
    if following:  # B2, B6: an end has caused them; those of an acquire have an offset
        take_out(part.state, following, queues)
    fences = _number(part, loaded)
    after = table_rows(*part, parked)
    # The decision may reach rows that were not locked: a key, a lane, a job. Then it was made on what others may be
    # changing, so it is thrown away and made again with them. `check_locked` is the last guard before anything is sent.
    change = difference(before, after, part.state)
    if not kinds.isdisjoint(TAKES_KEYS):
        keys.change(change, part.state, part.numbers, events)
    check_locked(change, before, locked)
    if change.gone or change.come.keys() - {"refusals"}:  # before COMMIT: its answer may be lost
        known.has_moved_jobs |= any(queue.mode is not QueueMode.ACQUIRE for queue in part.state.queues.values())
    yield from _save(known, part, change, events, following, _unfolded(part.state, loaded))
    if not kinds.isdisjoint(MAY_EXPIRE):
        known.expiries.notify(expirations(part.state, events))
    if after.ready:
        known.positions.lower((one.queue, one.rank, one.available_at, one.seq) for one in after.ready.values())
    return _with_fences(answer, fences)


def _unfolded(state: State, loaded: Loaded) -> list[str]:
    """Groups whose members were added by many transactions, and those that are sealed: counted in one place from now
    on. By what a sealed group's row counts, the fast path knows whether the group may be over."""
    return [
        group.id
        for group in loaded.groups or ()
        if group.joins > JOINS_LEFT or (group.joins and state.groups[group.id].sealed_at is not None)
    ]


# Save --------------------------------------------------------------------------------------------------------------


def _number(part: LoadedState, loaded: Loaded) -> dict[int, int]:
    """The numbers that were drawn for what the kernel counted up from BASE; returns the fences."""
    state = part.state
    moved = sorted((job for job in state.jobs.values() if job.seq > BASE), key=lambda job: job.seq)
    granted = sorted(one.fence for job in state.jobs.values() for one in job.executions if one.fence > BASE)
    if not moved and not granted:
        return {}
    lined_up = [job for job in moved if is_behind(state, job) and job.spec.id not in part.turns]
    drawn = dict(zip(granted, loaded.fences, strict=False))
    for job, turn in zip(lined_up, loaded.turns, strict=False):
        part.turns[job.spec.id] = turn
    for job, seq in zip(moved, loaded.seqs, strict=False):
        job.seq = seq
        part.numbers.setdefault(job.spec.id, seq)
    for job in state.jobs.values():
        for execution in job.executions:
            execution.fence = drawn.get(execution.fence, execution.fence)
    return drawn


def _with_fences(answer: AnswerT, fences: dict[int, int]) -> AnswerT:
    if not fences or not isinstance(answer, list):
        return answer
    return [_with_fence(one, fences) for one in answer]  # type: ignore[return-value]


def _with_fence(outcome: Any, fences: dict[int, int]) -> Any:
    if not isinstance(outcome, c.Acquired | c.AlreadyAcquired):
        return outcome
    lease = outcome.lease
    return replace(outcome, lease=replace(lease, fence=fences.get(lease.fence, lease.fence)))


def _save(
    known: Known,
    part: LoadedState,
    change: Change,
    events: Sequence[AnyEvent],
    following: Sequence[JobSpec],
    unfolded: Sequence[str],
) -> Steps[None]:
    """Write what a decision changed, and COMMIT with it. Jobs that an end has caused are inserted as any enqueue's are,
    in the same transaction."""
    is_announced = any(isinstance(event, JobCancelled) for event in events) and cancels_a_run(part.state, events)
    announcement = (known.channel, RUN_CANCELLED) if is_announced else None
    ended = sorted(map(part.numbers.__getitem__, part.numbers.keys() & ended_jobs(events)))
    if "finished" in change.belongings:  # retention counts what it forgets, and so it is alone with it
        yield from send(lock(known.retention_key))
    writes = saving(known.schema, change, ended, announcement)
    if unfolded:
        writes.append(Execute("fold_groups", {"groups": unfolded}))
    if following:
        if writes:
            yield from send(*writes)
            writes = []
        outcomes = yield from insert_caused(following, None)  # who waits is notified of the whole decision
        there = [outcome.job_id for outcome in outcomes if not isinstance(outcome, c.Enqueued)]
        if there:
            raise MoreRowsNeeded(there)
        yield from take_caused(following)
        known.has_caused_arrivals |= any(job.lane is not None for job in following)
    number = part.state.format
    if number > known.format and number in KNOWN_SINCE:
        writes.append(Execute("use_verbs", {"since": KNOWN_SINCE[number]}))
    yield from send(*writes, COMMIT)
    known.format = max(known.format, number)
