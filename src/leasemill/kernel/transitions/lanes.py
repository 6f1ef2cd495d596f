"""Lanes: who is at the head, who comes next, and which offsets have ended. Rules N1 to N10."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from leasemill.kernel.index.ranges import Ranges
from leasemill.kernel.model import Job
from leasemill.kernel.state import READY, Lane, State, forget, make_ready

__all__ = ["LaneHint"]


class LaneHint(Struct, frozen=True):
    """The job that is now at the head of the lane."""

    job_id: str
    offset: int | None


# Deciding ------------------------------------------------------------------------------------------------------


def lane_of(state: State, job: Job) -> Lane | None:
    return None if job.spec.lane is None else state.lanes.get((job.spec.queue, job.spec.lane))


def next_in_lane(state: State, lane: Lane) -> Job | None:
    """The job behind the lane's head."""
    for seq in lane.waiting or ():
        job = state.listing.get(seq)
        if job is not None and job.state is READY:
            return job
    return None


def hint_behind_head(state: State, job: Job) -> LaneHint | None:
    """N7: who is next once this job, the head of its lane, has ended."""
    lane = lane_of(state, job)
    return None if lane is None else _hint(next_in_lane(state, lane))


def hint_at_head(state: State, job: Job) -> LaneHint | None:
    """N7: who is next now that this job has ended."""
    lane = lane_of(state, job)
    if lane is None or lane.head is job:
        return None
    return _hint(lane.head)


def _hint(job: Job | None) -> LaneHint | None:
    return None if job is None else LaneHint(job.spec.id, job.spec.offset)


# Applying ------------------------------------------------------------------------------------------------------


def join_lane(state: State, job: Job, at: int) -> None:
    if enter_lane(state, job):
        make_ready(state, job, at)


def enter_lane(state: State, job: Job) -> bool:
    """Put the job at the end of its lane; whether it is the lane's head."""
    spec = job.spec
    assert spec.lane is not None
    key = (spec.queue, spec.lane)
    lane = state.lanes.get(key)
    if lane is None:
        lane = state.lanes[key] = Lane()
    if lane.head is None:
        lane.head = job
        return True
    if lane.waiting is None:
        lane.waiting = deque()
    lane.waiting.append(job.seq)
    lane.waiting_count += 1
    return False


def leave_lane(state: State, job: Job, at: int) -> None:
    spec = job.spec
    if spec.lane is None:
        return
    key = (spec.queue, spec.lane)
    lane = state.lanes[key]
    if lane.head is not job:
        lane.waiting_count -= 1
        return
    lane.head = None
    head = next_in_lane(state, lane)
    if head is not None:
        assert lane.waiting is not None
        while lane.waiting.popleft() != head.seq:
            pass
        lane.waiting_count -= 1
        lane.head = head
        make_ready(state, head, at)
    elif not lane.finished and not lane.failed:
        del state.lanes[key]  # N6: an idle lane costs nothing
    else:
        lane.waiting = None


def finish_offset(state: State, job: Job) -> None:
    """N10: the offset goes into the lane's ranges; of its jobs only the latest stays, to recognise a repeated ack."""
    spec = job.spec
    assert spec.lane is not None and spec.offset is not None
    lane = state.lanes[spec.queue, spec.lane]
    if lane.finished is None:
        lane.finished = Ranges()
    lane.finished.add(spec.offset)
    if lane.last_finished is not None and (earlier := state.jobs.get(lane.last_finished)) is not None:
        forget(state, earlier)
    lane.last_finished = spec.id


def fail_offset(state: State, job: Job) -> None:
    spec = job.spec
    if spec.offset is None or spec.lane is None:
        return
    lane = state.lanes[spec.queue, spec.lane]
    if lane.failed is None:
        lane.failed = Ranges()
    lane.failed.add(spec.offset)


def unfail_offset(state: State, job: Job) -> None:
    spec = job.spec
    if spec.offset is None or spec.lane is None:
        return
    lane = state.lanes[spec.queue, spec.lane]
    if lane.failed is not None:
        lane.failed.discard(spec.offset)
