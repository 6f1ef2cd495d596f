"""What a step costs: lines of the kernel that run, counted, so that no machine's speed is in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import SECOND, JobSpec, OnFailure, Policy
from leasemill.kernel.read.filter import JOBS_LOOKED_AT
from leasemill.kernel.state import State
from leasemill.testing.rules import rule

NOW = 10**15
FEW, MANY = 50, 5_000


def lines_run(step: Callable[[], object]) -> int:
    """How many lines of Python a step runs."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


def claim(state: State, limit: int = 1) -> list[c.Lease]:
    tokens = [f"token-{state.fence}-{number}" for number in range(limit)]
    return run(state, c.Claim("worker", ["queue"], limit, tokens), NOW)[1]


def enqueue(state: State, count: int, prefix: str, **fields: Any) -> None:
    for first in range(0, count, 1_000):
        numbers = range(first, min(first + 1_000, count))
        run(state, c.Enqueue([JobSpec(f"{prefix}-{number}", "queue", "kind", **fields) for number in numbers]), NOW)


def waiting(count: int) -> State:
    state = State()
    enqueue(state, count, "job")
    return state


def not_due(count: int) -> State:
    state = State()
    enqueue(state, count, "later", delay_us=SECOND, priority=9)
    enqueue(state, 10, "job")
    return state


def blocked_in_a_lane(count: int) -> State:
    state = State()
    enqueue(state, count, "blocked", lane="lane", priority=9)
    claim(state)
    enqueue(state, 10, "job")
    return state


def in_many_lanes(count: int) -> State:
    state = State()
    for number in range(count):
        enqueue(state, 2, f"lane-{number}", lane=f"lane-{number}")
    return state


def ended(count: int) -> State:
    state = State()
    enqueue(state, count, "done")
    for lease in claim(state, count):
        run(state, c.Ack([c.AckReport(lease.job.id, lease.token)]), NOW)
    enqueue(state, 10, "job")
    return state


def failed(count: int) -> State:
    state = State()
    policy = Policy(max_retries=0, on_failure=OnFailure.BLOCK)
    for number in range(count):
        enqueue(state, 2, f"failed-{number}", lane=f"lane-{number}", policy=policy)
    for lease in claim(state, count):
        run(state, c.Nack([c.NackReport(lease.job.id, lease.token, "broke")]), NOW)
    enqueue(state, 10, "job")
    return state


def cancelled(count: int) -> State:
    state = State()
    enqueue(state, count, "job")
    run(state, c.Cancel([f"job-{number}" for number in range(count) if number % 10], "ada", "why"), NOW)
    return state


def leased(count: int) -> State:
    state = State()
    enqueue(state, count, "leased")
    claim(state, count)
    enqueue(state, 10, "job")
    return state


@rule("C4", "N6")
@pytest.mark.parametrize(
    "state_of", [waiting, not_due, blocked_in_a_lane, in_many_lanes, ended, failed, cancelled, leased]
)
def test_a_claim_costs_no_more_among_many_jobs_than_among_few(state_of: Callable[[int], State]) -> None:
    few, many = state_of(FEW), state_of(MANY)
    assert lines_run(lambda: claim(many, 3)) <= 1.5 * lines_run(lambda: claim(few, 3)) + 50


@rule("N6")
def test_ending_a_lanes_head_costs_no_more_in_a_long_lane() -> None:
    def end_head(count: int) -> int:
        state = State()
        enqueue(state, count, "job", lane="lane")
        (lease,) = claim(state)
        report = c.Ack([c.AckReport(lease.job.id, lease.token)])
        return lines_run(lambda: run(state, report, NOW))

    assert end_head(MANY) <= 1.5 * end_head(FEW)


@rule("N6")
def test_an_idle_lane_costs_nothing() -> None:
    state = State()
    for number in range(100):
        enqueue(state, 1, f"job-{number}", lane=f"lane-{number}")
    for lease in claim(state, 100):
        run(state, c.Ack([c.AckReport(lease.job.id, lease.token)]), NOW)
    assert state.lanes == {}


@rule("O6")
@pytest.mark.parametrize("make", [c.Redrive, c.Purge], ids=["redrive", "purge"])
def test_a_filter_that_fits_little_never_makes_one_long_step(make: type[c.Redrive] | type[c.Purge]) -> None:
    state = State()
    count = JOBS_LOOKED_AT + 100
    enqueue(state, count, "job")
    run(state, c.Cancel([f"job-{number}" for number in range(JOBS_LOOKED_AT)], "ada", "why"), NOW)
    run(state, c.Cancel([f"job-{number}" for number in range(JOBS_LOOKED_AT, count)], "ada", "why"), NOW)
    wanted = c.JobFilter(kind="no such kind")
    _, first = run(state, make(wanted, "ada", "why", 10), NOW)
    assert (first.job_ids, first.after is None) == ((), False)
    _, second = run(state, make(wanted, "ada", "why", 10, first.after or 0), NOW)
    assert second == c.Operated((), None)


@rule("O6")
def test_a_reading_that_fits_little_says_where_to_go_on() -> None:
    state = State()
    enqueue(state, JOBS_LOOKED_AT, "job")
    enqueue(state, 1, "wanted", priority=1, lane="lane")
    page = run(state, c.ListJobs(c.JobFilter(lane="lane"), 10), NOW)[1]
    assert page.jobs == ()
    assert page.after is not None
    rest = run(state, c.ListJobs(c.JobFilter(lane="lane"), 10, page.after), NOW)[1]
    assert [job.spec.id for job in rest.jobs] == ["wanted-0"]
    lanes = run(state, c.ListLanes("queue", 10), NOW)[1]
    assert lanes.lanes == ()
    assert lanes.after is not None
    assert len(run(state, c.ListLanes("queue", 10, False, lanes.after), NOW)[1].lanes) == 1
