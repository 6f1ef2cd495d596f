"""The rows that load.sql returns, as a small state on which the kernel decides.

It holds the rows that were locked and loaded, and no others: a decision that needs more begins again with them.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from leasemill.kernel.model import Job, JobState
from leasemill.kernel.state import Lane, State, finished_at, make_ready, take_places
from leasemill.kernel.transitions.executions import hold
from leasemill.store.postgres.exact.groups import group_of
from leasemill.store.postgres.rows.jobs import jobs_of
from leasemill.store.postgres.rows.tables import (
    LaneRow,
    LoadedGroup,
    ParkedRow,
    QueueRow,
    Read,
    WaitingRow,
    decoder,
)
from leasemill.store.postgres.rows.values import MODES, policy_of, ranges_of

BASE: Final = 2**62
"""The kernel counts new numbers up from here; those that were drawn from the sequences take their places."""


class Loaded(Read, gc=False):
    """The document that load.sql returns."""

    now: int
    has_arrived: bool
    queues: list[QueueRow] | None
    lanes: list[LaneRow] | None
    waiting: list[WaitingRow] | None
    groups: list[LoadedGroup] | None
    parked: list[ParkedRow] | None
    seqs: list[int]
    fences: list[int]
    turns: list[int]


loaded_from = decoder(Loaded)


class LoadedState(NamedTuple):
    """A part of the store as a kernel state, and the numbers of its rows."""

    state: State
    numbers: dict[str, int]
    turns: dict[str, int]
    joined: dict[str, int]
    """The members of each group that its row does not count yet."""


def kernel_state(loaded: Loaded) -> LoadedState:
    state, turns = State(), dict[str, int]()
    jobs = jobs_of(loaded)
    for queue in loaded.queues or ():
        known = state.queue(queue.name)
        known.mode, known.is_paused = None if queue.mode is None else MODES[queue.mode], queue.is_paused
        known.policy = None if queue.policy is None else policy_of(queue.policy)
    for one in loaded.lanes or ():
        if one.head is not None or one.finished is not None or one.failed is not None:
            lane = state.lanes[one.queue, one.lane] = Lane()
            lane.finished, lane.failed = ranges_of(one.finished), ranges_of(one.failed)
            lane.head = None if one.head is None else jobs.get(one.head)
            last = None if one.last_finished is None else jobs.get(one.last_finished)
            lane.last_finished = None if last is None else last.spec.id
    for behind in loaded.waiting or ():
        job = jobs[behind.no]
        turns[job.spec.id] = behind.turn
        lane = state.lanes[behind.queue, behind.lane]
        lane.waiting = lane.waiting or deque()
        lane.waiting.append(job.seq)
        lane.waiting_count += 1
    for job in sorted(jobs.values(), key=lambda job: job.seq):
        _place(state, job, is_waiting=job.spec.id in turns)
    for group in loaded.groups or ():
        state.groups[group.id] = group_of(group)
    state.seq = state.fence = BASE
    joined = {group.id: group.joined for group in loaded.groups or ()}
    return LoadedState(state, {job.spec.id: no for no, job in jobs.items()}, turns, joined)


def _place(state: State, job: Job, *, is_waiting: bool) -> None:
    """As `kernel.image` does, but for the lanes, whose order is that of admission."""
    state.jobs[job.spec.id] = job
    state.queue(job.spec.queue).counts[job.state] += 1
    match job.state:
        case JobState.LEASED:
            hold(state, job.executions[-1])
            if job.spec.rules is not None:
                take_places(state, job)
        case JobState.FAILED | JobState.DEAD | JobState.CANCELLED:
            state.unsuccessful.add(job)
        case JobState.SUCCEEDED if job.spec.offset is None:
            state.finished.push(finished_at(job), job.seq, job)
        case JobState.READY if not is_waiting:
            make_ready(state, job, job.updated_at)
        case JobState.SUCCEEDED | JobState.READY:
            pass
    state.listing.add(job)
