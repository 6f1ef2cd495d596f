"""enqueue where jobs have unique keys: who meets a key is decided by the kernel, with the key's row locked.

First one statement makes the jobs whose keys nobody has taken. For the others their keys are locked, which waits for
whoever is about to take one: a rollback lets the next one in, and nobody is called a duplicate of a job that never was.
Only then, by what was committed meanwhile, is it judged who holds them.
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
from leasemill.store.postgres.exact.rows import jobs_of
from leasemill.store.postgres.exact.tables import Read, decoder
from leasemill.store.postgres.exact.values import headers_text
from leasemill.store.postgres.steps import Steps
from leasemill.store.postgres.verbs.inserting import begun_chains, columns, inserting_plain
from leasemill.store.postgres.wire.arrays import encoded, int8s, texts
from leasemill.store.postgres.wire.connections import Moved, Row

_read = decoder(Read)


def has_keys(jobs: Sequence[JobSpec]) -> bool:
    return any(job.rules is not None and job.rules.unique is not None for job in jobs)


def inserting_unique(jobs: Sequence[JobSpec], channel: str | None, by: str | None) -> Steps[list[c.EnqueueOutcome]]:
    """In a transaction, for any kind of connection. `by`: the job whose commit adds them."""
    made = yield from trying(jobs, channel)
    return (yield from deciding_rest(jobs, made, channel, by))


def trying(jobs: Sequence[JobSpec], channel: str | None, *, are_new: bool = False) -> Steps[set[int]]:
    """Make the jobs whose ids are new and whose keys nobody has taken; which, by their places in the batch.

    `are_new`: a known id fails, and all with it; then one statement is all, and needs no transaction.
    """
    if len({job.id for job in jobs}) < len(jobs):
        return set()  # E6: an id may be known or not, depending on the keys of those before it
    if len(jobs) > 1 and any(job.lane is not None for job in jobs):
        return set()  # N2: whoever meets a key is made after the others
    if any(job.rules is not None and (job.rules.group is not None or job.rules.chain) for job in jobs):
        return set()  # B1, B6: may be refused
    first: dict[QueueKey | int, int] = {}
    for index, job in enumerate(jobs):
        first.setdefault(key_of(job) or index, index)
    tried = [jobs[index] for index in first.values()]
    given = {
        **columns(tried, channel),
        "keys": texts([None if (unique := unique_of(job)) is None else unique.key for job in tried]),
        "keeps": int8s([0 if (unique := unique_of(job)) is None else unique.keep_us for job in tried]),
    }
    ((count, ids, unused, _),) = yield "enqueue_unique_new" if are_new else "enqueue_unique", given
    if unused:
        yield "untake_keys", {"nos": int8s(unused), "queues": given["queues"], "keys": given["keys"]}
    made = {job.id for job in tried} if count == len(tried) else set(ids or ())
    return {index for index in first.values() if jobs[index].id in made}


def deciding_rest(
    jobs: Sequence[JobSpec], made: set[int], channel: str | None, by: str | None = None
) -> Steps[list[c.EnqueueOutcome]]:
    """The outcome of each of the jobs, of which some are made; in a transaction, if not all are."""
    rest = [job for index, job in enumerate(jobs) if index not in made]
    decided: list[c.EnqueueOutcome] = (yield from _deciding(rest, channel, by)) if rest else []
    following = iter(decided)
    return [c.Enqueued(job.id) if index in made else next(following) for index, job in enumerate(jobs)]


def _deciding(jobs: Sequence[JobSpec], channel: str | None, by: str | None) -> Steps[list[c.EnqueueOutcome]]:
    keys = dict.fromkeys(key for job in jobs if (key := key_of(job)) is not None)
    rows = (yield "lock_keys", key_parameters(keys)) if keys else []
    ((document,),) = yield "read", {"nos": int8s([no for _, _, no, *_ in rows]), "ids": texts([job.id for job in jobs])}
    decision = _Decision(rows, _read(document), (yield from begun_chains(jobs)))
    yield from _refusing(decision.new_members(jobs), by)
    outcomes = [decision.on(job) for job in jobs]
    if decision.made:
        inserted = yield from inserting_plain(decision.made, channel, by=by)
        if not all(isinstance(outcome, c.Enqueued) for outcome in inserted):
            raise Moved("a concurrent call enqueued the same id")
        ((count,),) = yield "take_keys", taken_parameters(decision.taken)
        if count != len(decision.taken):
            raise Moved("a concurrent call removed the unique key")
    if decision.replaced:
        ((count,),) = yield "replace", decision.replaced_parameters()
        if count != len(decision.replaced):
            raise Moved("a concurrent call claimed the job")
    if decision.has_held_up and channel is not None:
        yield "notify", {"channel": channel}
    return outcomes


def _refusing(groups: list[str], by: str | None) -> Steps[None]:
    """B1: a new member of a group that takes none is refused, also if its key would merge it."""
    if not groups:
        return
    closed = {name for (name,) in (yield "closed_groups", {"groups": texts(groups), "member": by})}
    named = next((name for name in groups if name in closed), None)
    if named is not None:
        raise refusal(named, is_known=bool((yield "share_groups", {"groups": texts([named])})))


class _Decision:
    """The kernel's, on the keys concerned, their holders and the jobs whose ids are known: as few rows as that."""

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
        """Whether claims pass over a job until the transaction ends."""

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
            "ids": texts(self.replaced),
            "payloads": encoded([event.payload for event in latest]),
            "headers": texts([headers_text(event.headers) for event in latest]),
            "due_ats": int8s([event.available_at for event in latest]),
            "counts": int8s([len(events) for events in self.replaced.values()]),
            "ats": int8s([event.at for event in latest]),
        }


def _with_key_alone(job: JobSpec) -> JobSpec:
    """What else binds the job to others is not decided here."""
    unique = unique_of(job)
    return replace(job, rules=None if unique is None else Rules(unique))
