"""Queues: how much waits in each, since when, how fast it drains, and what is set for it; and one queue.

The page of one queue reads its own limit too, so that what an operator has just set is shown at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.sampler import QUEUES_SHOWN, Sample, Worked
from leasemill.errors import NotFound
from leasemill.kernel.commands import LimitView, QueueView
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, JobState, Policy
from leasemill.operator.wording import span

WORKERS_SHOWN: Final = 50


class QueueOnPage(Struct, frozen=True):
    view: QueueView
    rate: float | None
    limit: LimitView | None
    workers: int
    policy: list[tuple[str, str]]
    due_at: int | None
    """The time since which its oldest job has been due; None if no job is."""

    @property
    def waiting(self) -> int:
        return self.view.counts[JobState.READY]

    @property
    def failed(self) -> int:
        return self.view.counts[JobState.FAILED] + self.view.counts[JobState.DEAD]


SORTED_BY: Final[dict[str, Callable[[QueueOnPage], Any]]] = {
    "name": lambda row: row.view.name,
    "waiting": lambda row: (-row.waiting, row.view.name),
    "running": lambda row: (-row.view.counts[JobState.LEASED], row.view.name),
    "failed": lambda row: (-row.failed, row.view.name),
    "age": lambda row: (row.due_at is None, row.due_at, row.view.name),
    "rate": lambda row: (-(row.rate or 0.0), row.view.name),
}


def read(context: PageContext) -> Mapping[str, Any]:
    sample = context.sample
    order = context.asked("order") or "name"
    rows = [] if sample is None else sorted(rows_of(sample), key=SORTED_BY.get(order, SORTED_BY["name"]))
    return {"rows": rows, "order": order, "is_cut": len(rows) == QUEUES_SHOWN, "most": QUEUES_SHOWN}


def rows_of(sample: Sample) -> list[QueueOnPage]:
    serving: dict[str, int] = {}
    for worker in sample.workers:
        for queue in worker.record.queues if worker.record.claims and not worker.is_stale else ():
            serving[queue] = serving.get(queue, 0) + 1
    return [on_page(sample, view, serving.get(view.name, 0)) for view in sample.queues]


def on_page(sample: Sample, view: QueueView, workers: int) -> QueueOnPage:
    first_at = view.oldest_available_at
    return QueueOnPage(
        view,
        sample.queue_rates.get(view.name),
        sample.limits.get(QUEUE_LIMIT + view.name),
        workers,
        policy_words(view.policy),
        first_at if first_at is not None and first_at <= sample.at else None,
    )


def policy_words(policy: Policy | None) -> list[tuple[str, str]]:
    """Return the settings, as names and values."""
    if policy is None:
        return []
    return [
        (name.removesuffix("_us").replace("_", " "), span(value) if name.endswith("_us") else str(value))
        for name, value in msgspec.structs.asdict(policy).items()
        if value is not None
    ]


def seconds_of(us: int | None) -> str:
    """Write a duration as an input field holds it."""
    return "" if us is None else f"{us / SECOND:g}"


def read_one(context: PageContext) -> Mapping[str, Any]:
    name = context.asked("name")
    if name is None:
        raise NotFound("No queue is named in this address.")
    view = context.once(("queue", name), lambda: context.queue(name))
    sample = context.sample
    workers = [] if sample is None else serving(sample, name)
    return {
        "title": name,
        "row": None if sample is None else on_page(sample, view, sum(claims(one) for one in workers)),
        "arrived": None if sample is None else sample.queue_arrivals.get(name),
        "limit": context.store.limit(QUEUE_LIMIT + name, limit=1),
        "limit_name": QUEUE_LIMIT + name,
        "workers": workers[:WORKERS_SHOWN],
        "worker_count": len(workers),
    }


def serving(sample: Sample, queue: str) -> list[Worked]:
    """Return the workers that serve the queue. Those that claim from it now come first."""
    found = (one for one in sample.workers if queue in one.record.queues)
    return sorted(found, key=lambda one: (not claims(one), one.record.worker))


def claims(one: Worked) -> bool:
    return not one.is_stale and one.record.claims


PAGE: Final = Page("queues", "/queues", "Queues", "queues.html", read, section="Now", is_sampled=True)
ONE: Final = Page("queue", "/queue", "Queue", "queue.html", read_one)
