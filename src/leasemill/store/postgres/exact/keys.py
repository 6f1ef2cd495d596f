"""Unique keys on the exact path: which of them a decision is about, and what it changes in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from leasemill.kernel.events import AnyEvent, JobEnqueued, JobRedriven, JobReplaced
from leasemill.kernel.index.taken_keys import Key
from leasemill.kernel.model import JobSpec
from leasemill.kernel.state import State
from leasemill.kernel.transitions.unique import QueueKey, key_of, retakes, unique_of
from leasemill.store.postgres.exact.change import Change
from leasemill.store.postgres.rows.jobs import job_row
from leasemill.store.postgres.rows.tables import JobRow, KeyRow
from leasemill.store.postgres.rows.tables import Row as TableRow
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, Message, RetryTransaction, Row, Steps, row, send

TAKES_KEYS: Final = frozenset({JobEnqueued, JobRedriven, JobReplaced})
"""Events that concern the unique key of their job."""


class Keys:
    """The unique keys that a transaction has locked, before anything else."""

    def __init__(self, names: Sequence[QueueKey], rows: Sequence[Row]) -> None:
        self._names = set(names)
        self.taken = [(key, Key(job_id, until_at, queue)) for queue, key, no, until_at, job_id, _ in rows if no]
        self.holders = [taken.job_id for _, taken in self.taken]
        """The jobs that took them last: also those that are forgotten."""

    def missing(self, state: State, events: Iterable[AnyEvent]) -> set[QueueKey]:
        """The keys that a decision turned out to need, and that are not locked."""
        return {key for key, _ in _takes(state, events)} - self._names

    def change(self, change: Change, state: State, numbers: Mapping[str, int], events: Sequence[AnyEvent]) -> None:
        """Keys that redriven jobs took again, and jobs that were replaced. Rows of keys that nobody holds any more are
        left to maintenance."""
        taken: list[TableRow] = [
            KeyRow(*key, numbers[job_id], found.until, job_id if found.until else None)
            for key, job_id in sorted(_takes(state, events))
            if job_id in numbers and (found := state.keys.get(*key)) is not None
        ]
        if taken:
            change.come["unique_keys"] = taken
        come = change.come.get("jobs", [])
        new = {row.no for row in come if isinstance(row, JobRow)}
        replaced = {event.job_id for event in events if isinstance(event, JobReplaced)}
        rows: list[TableRow] = [
            job_row(state.jobs[job_id], numbers[job_id])
            for job_id in sorted(replaced)
            if job_id in numbers and numbers[job_id] not in new
        ]
        if rows:
            change.come["jobs"] = come + rows


def _takes(state: State, events: Iterable[AnyEvent]) -> Iterable[tuple[QueueKey, str]]:
    """The keys that were taken, and by whom."""
    for event in events:
        if isinstance(event, JobEnqueued):
            spec = event.job
        elif isinstance(event, JobRedriven) and retakes(state.jobs[event.job_id]):
            spec = state.jobs[event.job_id].spec
        else:
            continue
        key = key_of(spec)
        if key is not None:
            yield key, spec.id


def lock_keys(names: Sequence[QueueKey]) -> Steps[tuple[Keys, Message]]:
    """Lock keys in a transaction that begins with it. Without any nothing is sent: the transaction begins with the next
    message, whose first statements are returned."""
    if not names:
        return Keys(names, ()), (BEGIN,)
    _, found = yield from send(BEGIN, Execute("lock_keys", key_parameters(names)))
    return Keys(names, found), ()


def take_caused(jobs: Sequence[JobSpec]) -> Steps[None]:
    """Jobs that an end has caused, and that are inserted, have their keys."""
    taken = {key: job for job in jobs if (key := key_of(job)) is not None}
    if taken and (yield from row("take_keys", taken_parameters(taken)))[0] != len(taken):
        raise RetryTransaction("a concurrent call removed the unique key")


def key_parameters(keys: Iterable[QueueKey]) -> dict[str, Any]:
    named = list(keys)
    return {"queues": [queue for queue, _ in named], "keys": [key for _, key in named]}


def taken_parameters(taken: Mapping[QueueKey, JobSpec]) -> dict[str, Any]:
    """Which job took a key; of several in one transaction the last."""
    rules = [unique for job in taken.values() if (unique := unique_of(job)) is not None]
    return {
        **key_parameters(taken),
        "ids": [job.id for job in taken.values()],
        "keeps": [unique.keep_us for unique in rules],
        "kept_froms": [
            job.run_at if unique.is_trailing else None for job, unique in zip(taken.values(), rules, strict=True)
        ],
    }
