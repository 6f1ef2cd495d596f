"""Groups in a small kernel state, and jobs that their ends cause."""

from __future__ import annotations

from collections.abc import Sequence

from leasemill.kernel.model import JobGroup, JobSpec
from leasemill.kernel.state import State
from leasemill.store.postgres.rows.tables import GroupRow, LoadedGroup
from leasemill.store.postgres.rows.values import template_of, template_text


def group_of(row: LoadedGroup) -> JobGroup:
    """Read a group from its row. Its fields for retention stay empty: retention asks the tables."""
    return JobGroup(
        row.id,
        0,
        row.created_at,
        template_of(row.then_job),
        template_of(row.end_job),
        row.parent,
        row.sealed_at,
        row.total + row.joined,
        row.succeeded,
        row.failed,
        row.dead,
        row.cancelled,
        row.ended_at,
        row.succeeded_at,
        row.is_over,
        remembered=2**62,
    )


def group_row(group: JobGroup, joined: int) -> GroupRow:
    return GroupRow(
        id=group.id,
        created_at=group.created_at,
        total=group.total - joined,
        succeeded=group.succeeded,
        failed=group.failed,
        dead=group.dead,
        cancelled=group.cancelled,
        is_over=group.is_over,
        sealed_at=group.sealed_at,
        ended_at=group.ended_at,
        succeeded_at=group.succeeded_at,
        parent=group.parent,
        then_job=template_text(group.then),
        end_job=template_text(group.on_end),
    )


def take_out(state: State, jobs: Sequence[JobSpec], queues: set[str]) -> None:
    """As if they had not been added, but for the counts of their groups: they are inserted like any enqueue's, and
    admitted to their lanes later. `queues`: those there were before."""
    for spec in reversed(jobs):
        job = state.jobs.pop(spec.id)
        state.listing.discard(job.seq)
        if spec.lane is not None:
            _leave(state, (spec.queue, spec.lane), job.seq)
        if spec.queue not in queues:
            state.queues.pop(spec.queue, None)


def _leave(state: State, key: tuple[str, str], seq: int) -> None:
    """The job came last."""
    lane = state.lanes[key]
    if lane.head is None or lane.head.seq != seq:
        assert lane.waiting is not None and lane.waiting[-1] == seq
        lane.waiting.pop()
        lane.waiting_count -= 1
        return
    lane.head = None
    if not lane.finished and not lane.failed:
        del state.lanes[key]
