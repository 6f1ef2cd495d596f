"""One queue: its jobs by state, how long the oldest has been due, rates, what is set for it, and who serves it.

Reads the shared sample and the queue's own limit, so that what an operator has just set is shown at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.pages.queues import on_page
from leasemill.dashboard.sampler import Sample, Worked
from leasemill.errors import NotFound
from leasemill.kernel.model import QUEUE_LIMIT

WORKERS_SHOWN: Final = 50


def read(context: PageContext) -> Mapping[str, Any]:
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
    """Workers that name the queue among theirs; those that claim from it now come first."""
    found = (one for one in sample.workers if queue in one.record.queues)
    return sorted(found, key=lambda one: (not claims(one), one.record.worker))


def claims(one: Worked) -> bool:
    return not one.is_stale and one.record.claims


PAGE: Final = Page("queue", "/queue", "Queue", "queue.html", read)
