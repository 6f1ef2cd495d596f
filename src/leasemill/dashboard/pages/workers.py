"""Workers: slots, heartbeats, hosts and processes, and what each runs. Reads nothing but the shared sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.sampler import Worked
from leasemill.operator.workers import ahead_or_behind, are_apart
from leasemill.store.worker_records import RunningJob, WorkerRecord

WORKERS_SHOWN: Final = 200
RUNNING_SHOWN: Final = 100
COUNTERS_SHOWN: Final = 40


class RunningOnPage(Struct, frozen=True):
    """A job that a worker runs. `seconds`: until now. `is_stuck`: its attempt is over, and its handler runs on."""

    worker: str
    job: RunningJob
    seconds: float
    is_stuck: bool
    is_stale: bool


def read(context: PageContext) -> Mapping[str, Any]:
    workers = [] if context.sample is None else sorted(context.sample.workers, key=_order)
    name = context.asked("worker")
    chosen = next((one for one in workers if one.record.worker == name), None)
    running = sorted(_running(workers if name is None else [chosen] if chosen else []), key=_running_order)
    live = [one for one in workers if not one.is_stale]
    return {
        "title": "Workers" if name is None else name,
        "workers": workers[:WORKERS_SHOWN],
        "count": len(workers),
        "most": WORKERS_SHOWN,
        "name": name,
        "chosen": chosen,
        "counters": [] if chosen is None else sorted(chosen.record.counters.items())[:COUNTERS_SHOWN],
        "running": running[:RUNNING_SHOWN],
        "running_count": len(running),
        "live": len(live),
        "slots": sum(one.record.concurrency for one in live),
        "taken": sum(taken_slots(one.record) for one in live),
        "stuck": sum(len(one.record.stuck) for one in live),
        "quiet": sum(one.record.is_quiet for one in live),
        "hosts": len({one.record.host for one in live}),
        "taken_slots": taken_slots,
        "are_apart": are_apart,
        "ahead_or_behind": ahead_or_behind,
    }


def taken_slots(record: WorkerRecord) -> int:
    return len(record.running) + len(record.stuck)


def _order(one: Worked) -> tuple[bool, bool, str]:
    """Sort workers that need attention first."""
    return not one.is_stale, not one.record.stuck, one.record.worker


def _running(workers: Iterable[Worked]) -> Iterable[RunningOnPage]:
    for one in workers:
        record = one.record
        for jobs, is_stuck in ((record.stuck, True), (record.running, False)):
            for job in jobs:
                yield RunningOnPage(record.worker, job, job.seconds + one.age_s, is_stuck, one.is_stale)


def _running_order(row: RunningOnPage) -> tuple[bool, float, str]:
    return not row.is_stuck, -row.seconds, row.job.job


PAGE: Final = Page(
    "workers", "/workers", "Workers", "workers.html", read, section="Now", is_sampled=True, is_estimated=True
)
