"""enqueue where jobs have unique keys: who meets a key is decided by the kernel, with the key's row locked.

First one statement makes the jobs whose keys are free. For the others their keys are locked, which waits for whoever is
about to take one: a rollback lets the next one in, and no call is a duplicate of a job that never was. Only then, by
what was committed meanwhile, is it judged who holds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.events import JobEnqueued, JobReplaced
from leasemill.kernel.image import Image, KeyImage, restore
from leasemill.kernel.machine import apply
from leasemill.kernel.model import JobSpec, Rules, UniqueUntil
from leasemill.kernel.state import RULES_FORMAT, State
from leasemill.kernel.transitions.groups import refusal
from leasemill.kernel.transitions.unique import QueueKey, key_of, unique_of
from leasemill.kernel.verbs.enqueue import decide, is_same_content
from leasemill.store.postgres.exact.keys import key_parameters, taken_parameters
from leasemill.store.postgres.insert import begun_chains, columns, insert_jobs
from leasemill.store.postgres.rows.jobs import jobs_of
from leasemill.store.postgres.rows.tables import Read, decoder
from leasemill.store.postgres.rows.values import headers_text
from leasemill.store.postgres.steps import RetryTransaction, Row, Steps, row, rows

_read = decoder(Read)


def has_keys(jobs: Sequence[JobSpec]) -> bool:
    return any(job.rules is not None and job.rules.unique is not None for job in jobs)


def insert_unique(jobs: Sequence[JobSpec], channel: str | None, by: str | None = None) -> Steps[list[c.EnqueueOutcome]]:
    """In a transaction, on any kind of connection. `by`: the job whose commit adds them."""
    made = yield from insert_free(jobs, channel)
    return (yield from decide_rest(jobs, made, channel, by))


def insert_free(jobs: Sequence[JobSpec], channel: str | None) -> Steps[set[int]]:
    """Insert the jobs whose ids are new and whose keys are free; returns their indexes.

    Needs no transaction if the ids were drawn for this call: a key is then never taken for a job that is not inserted.
    """
    if len({job.id for job in jobs}) < len(jobs):
        return set()  # E6: an id may be known or not, depending on the keys of those before it
    if len(jobs) > 1 and any(job.lane is not None for job in jobs):
        return set()  # N2: a job whose key is taken is inserted after the others
    if any(job.rules is not None and (job.rules.group is not None or job.rules.chain) for job in jobs):
        return set()  # B1, B6: may be refused
    first: dict[QueueKey | int, int] = {}
    for index, job in enumerate(jobs):
        first.setdefault(key_of(job) or index, index)
    tried = [jobs[index] for index in first.values()]
    given = {
        **columns(tried, channel),
        "keys": [None if (unique := unique_of(job)) is None else unique.key for job in tried],
        "keeps": [0 if (unique := unique_of(job)) is None else unique.keep_us for job in tried],
    }
    count, ids, unused, _ = yield from row("enqueue_unique", given)
    if unused:
        yield from rows("untake_keys", {"nos": unused, "queues": given["queues"], "keys": given["keys"]})
    made = {job.id for job in tried} if count == len(tried) else set(ids or ())
    return {index for index in first.values() if jobs[index].id in made}


def decide_rest(
    jobs: Sequence[JobSpec], made: set[int], channel: str | None, by: str | None = None
) -> Steps[list[c.EnqueueOutcome]]:
    """The outcome of each of the jobs, of which some are made; in a transaction, if not all are."""
    rest = [job for index, job in enumerate(jobs) if index not in made]
    decided: list[c.EnqueueOutcome] = (yield from _decide(rest, channel, by)) if rest else []
    following = iter(decided)
    return [c.Enqueued(job.id) if index in made else next(following) for index, job in enumerate(jobs)]


def _decide(jobs: Sequence[JobSpec], channel: str | None, by: str | None) -> Steps[list[c.EnqueueOutcome]]:
    """With the rows of their keys locked, until the transaction ends: what is read then stays so."""
    keys = dict.fromkeys(key for job in jobs if (key := key_of(job)) is not None)
    locked = (yield from rows("lock_keys", key_parameters(keys))) if keys else []
    ids = [job.id for job in jobs]
    (document,) = yield from row("read", {"nos": [no for _, _, no, *_ in locked], "ids": ids})
    decision = _Decision(locked, _read(document), (yield from begun_chains(jobs)))
    yield from _refuse(decision.new_members(jobs), by)
    outcomes = [decision.on(job) for job in jobs]
    if decision.made:
        inserted = yield from insert_jobs(decision.made, channel, by=by)
        if not all(isinstance(outcome, c.Enqueued) for outcome in inserted):
            raise RetryTransaction("a concurrent call enqueued the same id")
        (count,) = yield from row("take_keys", taken_parameters(decision.taken))
        if count != len(decision.taken):
            raise RetryTransaction("a concurrent call removed the unique key")
    if decision.replaced:
        (count,) = yield from row("replace", decision.replaced_parameters())
        if count != len(decision.replaced):
            raise RetryTransaction("a concurrent call claimed the job")
    if decision.has_held_up and channel is not None:
        yield from rows("notify", {"channel": channel})
    return outcomes


def _refuse(groups: list[str], by: str | None) -> Steps[None]:
    """B1: a new member of a group that takes none is refused, also if its key would merge it."""
    if not groups:
        return
    closed = {name for (name,) in (yield from rows("closed_groups", {"groups": groups, "member": by}))}
    named = next((name for name in groups if name in closed), None)
    if named is not None:
        raise refusal(named, is_known=bool((yield from rows("share_groups", {"groups": [named]}))))


class _Decision:
    """Decides by the kernel, on a state of the keys concerned, their holders and the jobs whose ids are known."""

    def __init__(self, rows: Sequence[Row], read: Read, refused: set[str]) -> None:
        self._refused = refused
        self._now = rows[0][-1] if rows else 0
        jobs = sorted(jobs_of(read).values(), key=lambda job: job.seq)
        self._known = {job.spec.id: job.spec for job in jobs}
        for job in jobs:
            job.spec = _with_key_alone(job.spec)
        keys = tuple(KeyImage(key, job_id, until_at, queue) for queue, key, no, until_at, job_id, _ in rows if no)
        seq = max((job.seq for job in jobs), default=0)
        self._state: State = restore(Image(seq, 0, (), (), (), RULES_FORMAT, keys=keys), jobs)
        self.made: list[JobSpec] = []
        self.taken: dict[QueueKey, JobSpec] = {}
        self.replaced: dict[str, list[JobReplaced]] = {}
        self.has_held_up = False
        """Return True if claims pass over a job until the transaction ends."""

    def new_members(self, jobs: Sequence[JobSpec]) -> list[str]:
        """The groups that jobs are to join whose ids are not known."""
        rules = [job.rules for job in jobs if job.rules is not None and job.id not in self._known]
        return [one.group for one in rules if one.group is not None]

    def on(self, job: JobSpec) -> c.EnqueueOutcome:
        known = self._known.get(job.id)
        if known is not None:
            return c.Duplicate(job.id) if is_same_content(known, job) else c.Conflict(job.id)
        if job.id in self._refused:
            return c.Conflict(job.id)
        events, outcome = decide(self._state, _with_key_alone(job), self._now)
        for event in events:
            apply(self._state, event)
            if isinstance(event, JobEnqueued):
                self._make(replace(job, run_at=event.job.run_at))
            elif isinstance(event, JobReplaced):
                self.replaced.setdefault(event.job_id, []).append(event)
                spec = self._known[event.job_id]
                self._known[spec.id] = replace(
                    spec, payload=event.payload, headers=event.headers, run_at=event.available_at
                )
        if isinstance(outcome, c.Merged) and outcome.job_id in self._known:
            unique = unique_of(self._known[outcome.job_id])
            self.has_held_up |= unique is not None and unique.until is UniqueUntil.STARTED
        return outcome

    def _make(self, job: JobSpec) -> None:
        self.made.append(job)
        self._known[job.id] = job
        key = key_of(job)
        if key is not None:
            self.taken[key] = job  # U10: of several the last has it

    def replaced_parameters(self) -> dict[str, Any]:
        latest = [events[-1] for events in self.replaced.values()]
        return {
            "ids": self.replaced,
            "payloads": [event.payload for event in latest],
            "headers": [headers_text(event.headers) for event in latest],
            "due_ats": [event.available_at for event in latest],
            "counts": [len(events) for events in self.replaced.values()],
            "ats": [event.at for event in latest],
        }


def _with_key_alone(job: JobSpec) -> JobSpec:
    """What else binds the job to others is not decided here."""
    unique = unique_of(job)
    return replace(job, rules=None if unique is None else Rules(unique))
