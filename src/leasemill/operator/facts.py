"""The facts that the store and the workers know of one job: read for an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from leasemill.kernel.commands import GroupView, KeyView, LaneView, LimitView, QueueView
from leasemill.kernel.model import ACTIONS_KEPT, QUEUE_LIMIT, Action, Job, JobState, LimitUse
from leasemill.kernel.transitions.groups import end_id, then_id
from leasemill.kernel.transitions.unique import unique_of
from leasemill.operator.listing import find_queue
from leasemill.store.base import Store
from leasemill.store.presence import Presence
from leasemill.store.worker_records import records


class LimitFact(Struct, frozen=True):
    """A limit that a job is under, with its key, and how it stands."""

    use: LimitUse
    view: LimitView

    @property
    def held(self) -> int:
        if self.use.key is not None:
            return next((one.held for one in self.view.keys if one.key == self.use.key), 0)
        return self.view.held - sum(one.held for one in self.view.keys)

    @property
    def holders(self) -> Sequence[str]:
        if self.use.key is not None:
            return next((one.holders for one in self.view.keys if one.key == self.use.key), ())
        return self.view.holders

    @property
    def opens_at(self) -> int | None:
        if self.use.key is not None:
            return next((one.opens_at for one in self.view.keys if one.key == self.use.key), None)
        return self.view.opens_at

    @property
    def is_full(self) -> bool:
        places = self.view.terms.places
        return places is not None and self.held >= places


class AtWork(Struct, frozen=True):
    """A worker with a recent heartbeat, and the queues it serves. `is_quiet`, `is_stopping`: it does not claim from
    them now, or not any more."""

    worker: str
    queues: frozenset[str]
    is_quiet: bool = False
    is_stopping: bool = False


def at_work(presence: Presence) -> list[AtWork]:
    found = records(presence)
    return [
        AtWork(one.worker, frozenset(one.queues), one.is_quiet, one.is_stopping)
        for one, age_s in found
        if not one.is_stale(age_s)
    ]


class JobFacts(Struct, frozen=True):
    """A job, its queue, its lane, and who acts on them. `actions`: newest first; `workers`: None if unknown.

    `group`: the one it is a member of; `callback_of`: the one whose end enqueued it; `before`: the job before it in its
    chain; `limits`: those it is under, its queue's own included, while it waits.
    """

    job: Job
    now: int
    queue: QueueView | None = None
    lane: LaneView | None = None
    actions: Sequence[Action] = ()
    workers: Sequence[AtWork] | None = None
    group: GroupView | None = None
    callback_of: GroupView | None = None
    before: Job | None = None
    limits: Sequence[LimitFact] = ()
    key: KeyView | None = None
    """The job that holds its unique key."""


def gather(
    store: Store,
    job_id: str,
    now: int,
    workers: Sequence[AtWork] | None = None,
    queues: Mapping[str, QueueView] | None = None,
) -> JobFacts | None:
    """The facts of a job; None if there is no such job. `queues`: those that the caller has read already."""
    job = store.job(job_id)
    if job is None:
        return None
    spec = job.spec
    stem = stem_of(spec.id)
    return JobFacts(
        job,
        now,
        (queues or {}).get(spec.queue) or find_queue(store, spec.queue),
        None if spec.lane is None else store.lane(spec.queue, spec.lane),
        [one for one in store.actions(limit=ACTIONS_KEPT) if spec.queue == one.target or spec.id in one.targets],
        workers,
        None if spec.rules is None or spec.rules.group is None else store.group(spec.rules.group),
        None if stem is None else _callback_of(store, stem, spec.id),
        None if stem is None else _before(store, stem, spec.id),
        list(_limits(store, job)) if job.state is JobState.READY and spec.offset is None else (),
        None if (unique := unique_of(spec)) is None else store.key(spec.queue, unique.key),
    )


def _limits(store: Store, job: Job) -> Iterator[LimitFact]:
    rules = job.spec.rules
    for use in (LimitUse(QUEUE_LIMIT + job.spec.queue), *(() if rules is None else rules.limits)):
        view = store.limit(use.name, key=use.key)
        if view is not None:
            yield LimitFact(use, view)


def stem_of(job_id: str) -> str | None:
    """The id of the job or the group that this id may follow from; None: from none, or from one that was cut."""
    stem, _, name = job_id.rpartition("/")
    return stem if stem and name in ("then", "end") else None


def _callback_of(store: Store, stem: str, job_id: str) -> GroupView | None:
    group = store.group(stem)
    return group if group is not None and callback_name(job_id, group) is not None else None


def callback_name(job_id: str, group: GroupView) -> str | None:
    """Return the callback of the group that has this id: `then`, `on_end`, or None."""
    if group.then is not None and job_id == then_id(group.id):
        return "then"
    if group.on_end is not None and job_id == end_id(group.id):
        return "on_end"
    return None


def _before(store: Store, stem: str, job_id: str) -> Job | None:
    job = store.job(stem) if job_id == then_id(stem) else None
    is_chained = job is not None and job.spec.rules is not None and bool(job.spec.rules.chain)
    return job if is_chained else None
