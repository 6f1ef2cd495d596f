"""What can be read of leases: which are held, by whom, and until when."""

from __future__ import annotations

from heapq import nsmallest

from msgspec import Struct

from leasemill.kernel.command import Command
from leasemill.kernel.model import NEVER, Execution
from leasemill.kernel.state import State

__all__ = ["LeaseView", "ListLeases"]


class LeaseView(Struct, frozen=True):
    """A lease that no report has ended yet; it may have expired. `started_at`: as far as it was reported."""

    job_id: str
    queue: str
    kind: str
    attempt: int
    fence: int
    token: str
    worker: str
    leased_at: int
    expires_at: int
    started_at: int | None


class ListLeases(Command[list[LeaseView]], frozen=True):
    """Timed leases in the order in which they were granted; `after`: the last fence of the page before. `worker`: those
    of this worker alone."""

    limit: int
    after: int = 0
    worker: str | None = None


def list_leases(state: State, query: ListLeases, _now: int) -> list[LeaseView]:
    held = (
        execution
        for execution in state.leases.first(len(state.leases), NEVER)
        if execution.fence > query.after and query.worker in (None, execution.worker)
    )
    return [_view(state, execution) for execution in nsmallest(query.limit, held, key=lambda one: one.fence)]


def _view(state: State, execution: Execution) -> LeaseView:
    spec = state.jobs[execution.job_id].spec
    return LeaseView(
        execution.job_id,
        spec.queue,
        spec.kind,
        execution.attempt,
        execution.fence,
        execution.token,
        execution.worker,
        execution.leased_at,
        execution.expires_at,
        execution.started_at,
    )
