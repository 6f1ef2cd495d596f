"""What the store and the workers know of one job: read for an explanation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from leasemill.kernel.commands import LaneView, QueueView
from leasemill.kernel.model import ACTIONS_KEPT, Action, Job
from leasemill.store.base import Store

QUEUES_READ: Final = 1_000


class AtWork(Struct, frozen=True):
    """A worker with a recent heartbeat, and the queues it serves."""

    worker: str
    queues: frozenset[str]


class JobFacts(Struct, frozen=True):
    """A job, its queue, its lane, and who acts on them. `actions`: newest first; `workers`: None if unknown."""

    job: Job
    now: int
    queue: QueueView | None = None
    lane: LaneView | None = None
    actions: Sequence[Action] = ()
    workers: Sequence[AtWork] | None = None


def gather(store: Store, job_id: str, now: int, workers: Sequence[AtWork] | None = None) -> JobFacts | None:
    """The facts of a job; None if there is no such job."""
    job = store.job(job_id)
    if job is None:
        return None
    spec = job.spec
    return JobFacts(
        job,
        now,
        find_queue(store, spec.queue),
        None if spec.lane is None else store.lane(spec.queue, spec.lane),
        [action for action in store.actions(limit=ACTIONS_KEPT) if action.target in (spec.id, spec.queue)],
        workers,
    )


def all_queues(store: Store) -> Iterator[QueueView]:
    """Every queue, by name."""
    after = ""
    while page := store.queues(limit=QUEUES_READ, after=after):
        yield from page
        if len(page) < QUEUES_READ:
            return
        after = page[-1].name


def find_queue(store: Store, name: str) -> QueueView | None:
    return next((view for view in all_queues(store) if view.name == name), None)
