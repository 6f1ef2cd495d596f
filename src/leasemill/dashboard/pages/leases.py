"""Leases: who holds which job and for how long still; those at risk come first. Reads leases up to a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from msgspec import Struct

from leasemill.dashboard.page_types import Page, PageContext
from leasemill.dashboard.sampler import Worked
from leasemill.dashboard.timeline import extended_us, last_extended_at
from leasemill.kernel.commands import JobFilter, LeaseView
from leasemill.kernel.model import Execution, ExecutionStatus
from leasemill.store.base import Store

LEASES_READ: Final = 1_000
PAGE_SIZE: Final = 100


class Risk(IntEnum):
    """The dangers for a lease, the worst first."""

    EXPIRED = 0
    NO_HEARTBEAT = 1
    NO_RECORD = 2
    NONE = 3


class LeaseOnPage(Struct, frozen=True):
    """A lease as it is shown. `age_s`: of its worker's heartbeat; None: the worker has no record."""

    view: LeaseView
    risk: Risk
    age_s: float | None
    left_us: int

    @property
    def order(self) -> tuple[int, int, int]:
        return self.risk, self.view.expires_at, self.view.fence


class LeaseTerms(Struct, frozen=True):
    """What its job's record adds. `extended_us`: how far extensions have carried it beyond its first end;
    `extended_at`: when the latest of them was, None: it was not extended."""

    ttl_us: int
    extended_us: int
    extended_at: int | None
    status: ExecutionStatus


def read(context: PageContext) -> Mapping[str, Any]:
    worker, queue = context.asked("worker"), context.asked("queue")
    held = context.once(("leases", worker), lambda: context.store.leases(worker=worker, limit=LEASES_READ))
    now = context.store.time()
    workers = () if context.sample is None else context.sample.workers
    rows = sorted(judged(held, workers, now), key=lambda row: row.order)
    rows = [row for row in rows if queue in (None, row.view.queue)]
    at_risk = [row for row in rows if row.risk is not Risk.NONE]
    only = "risk" if context.asked("only") == "risk" else None
    found = at_risk if only else rows
    start = context.number("from")
    shown = found[start : start + PAGE_SIZE]
    return {
        "rows": shown,
        "terms": terms_of(context.store, [row.view for row in shown]),
        "held": len(rows),
        "at_risk": len(at_risk),
        "longest_us": max((now - row.view.leased_at for row in rows), default=None),
        "soonest_us": min((row.left_us for row in rows), default=None),
        "only": only,
        "worker": worker,
        "queue": queue,
        "is_cut": len(held) == LEASES_READ,
        "most": LEASES_READ,
        "start": start,
        "page_size": PAGE_SIZE,
        "found": len(found),
        "Risk": Risk,
        "now": now,
    }


def judged(held: Sequence[LeaseView], workers: Sequence[Worked], now: int) -> list[LeaseOnPage]:
    known = {one.record.worker: one for one in workers}
    rows = []
    for view in held:
        one = known.get(view.worker)
        rows.append(LeaseOnPage(view, _risk(view, one, now), None if one is None else one.age_s, view.expires_at - now))
    return rows


def _risk(view: LeaseView, worker: Worked | None, now: int) -> Risk:
    if view.expires_at <= now:
        return Risk.EXPIRED
    if worker is None:
        return Risk.NO_RECORD
    return Risk.NO_HEARTBEAT if worker.is_stale else Risk.NONE


def terms_of(store: Store, shown: Sequence[LeaseView]) -> dict[int, LeaseTerms]:
    """Return the terms of leases that are still held, by fence."""
    if not shown:
        return {}
    ids = tuple(one.job_id for one in shown)
    jobs = {job.spec.id: job for job in store.jobs(JobFilter(job_ids=ids), limit=len(ids)).jobs}
    found = {}
    for view in shown:
        job = jobs.get(view.job_id)
        execution = None if job is None or not job.executions else job.executions[-1]
        if execution is not None and execution.fence == view.fence and execution.finished_at is None:
            found[view.fence] = _terms(execution)
    return found


def _terms(execution: Execution) -> LeaseTerms:
    return LeaseTerms(
        execution.terms.lease_ttl_us, extended_us(execution), last_extended_at(execution), execution.status
    )


PAGE: Final = Page("leases", "/leases", "Leases", "leases.html", read, section="Now")
