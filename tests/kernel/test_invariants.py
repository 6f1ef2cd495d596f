"""`violations` must be able to fail: sound states are broken by hand, each in one way, and it says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.events import JobEnqueued
from leasemill.kernel.index.ranges import Ranges
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply, run
from leasemill.kernel.model import AbortReason, ExecutionStatus, Job, JobSpec, JobState, LossReason, Refusal, Verb
from leasemill.kernel.state import Lane, State
from leasemill.testing.rules import rule

NOW = 10**15


def sound_state() -> State:
    """A bit of everything: ready, leased, committed, failed, a lane with a head and two behind it, offsets."""
    state = State()
    specs = [JobSpec(job_id, "queue", "kind") for job_id in ("leased", "other", "committed", "failed")]
    run(state, c.Enqueue(specs), NOW)
    tokens = ["t1", "t2", "t3", "t4"]
    run(state, c.Claim("worker", ["queue"], 4, tokens, "request"), NOW)
    run(state, c.Commit("committed", "t3"), NOW)
    run(state, c.Nack([c.NackReport("failed", "t4", "broke", is_permanent=True)]), NOW)
    run(state, c.Enqueue([JobSpec(job_id, "queue", "kind", lane="lane") for job_id in ("l1", "l2", "l3")]), NOW)
    run(state, c.Enqueue([JobSpec(job_id, "queue", "kind") for job_id in ("r1", "r2")]), NOW)
    for offset in (1, 2):
        request = c.AcquireRequest("offsets", "lane", offset, "worker", f"offset-{offset}")
        run(state, c.Acquire([request]), NOW)
        if offset == 1:
            run(state, c.Ack([c.AckReport("offsets/lane/1", "offset-1")]), NOW)
    assert violations(state) == []
    return state


def job(state: State, job_id: str) -> Job:
    return state.jobs[job_id]


def lane(state: State) -> Lane:
    return state.lanes["queue", "lane"]


def _misplace(state: State) -> None:
    state.jobs["elsewhere"] = job(state, "r1")


def _lose_from_listing(state: State) -> None:
    state.listing.discard(job(state, "r1").seq)


def _lie_about_state(state: State) -> None:
    job(state, "r1").state = JobState.SUCCEEDED


def _live_twice(state: State) -> None:
    leased = job(state, "leased")
    leased.executions = (*leased.executions, replace(leased.executions[0], attempt=2, fence=99))


def _lease_and_ready(state: State) -> None:
    job(state, "leased").state = JobState.READY


def _commit_twice(state: State) -> None:
    committed = job(state, "committed")
    committed.executions = (*committed.executions, replace(committed.executions[0], attempt=2, fence=99))


def _abort_after_commit(state: State) -> None:
    execution = job(state, "committed").executions[0]
    execution.status, execution.reason = ExecutionStatus.ABORTED, AbortReason.EXPIRED


def _attempt_back(state: State) -> None:
    job(state, "leased").attempt = 0


def _token_twice(state: State) -> None:
    failed = job(state, "failed")
    failed.executions = (*failed.executions, replace(failed.executions[0], attempt=2, fence=state.fence + 1))


def _retry_beyond(state: State) -> None:
    job(state, "failed").retries = 4


def _refuse_twice(state: State) -> None:
    refusal = Refusal(Verb.ACK, "token", "worker", 1, 1, LossReason.ENDED, NOW)
    job(state, "failed").refusals = (refusal, refusal)


def _share_a_fence(state: State) -> None:
    job(state, "leased").executions[0].fence = job(state, "other").executions[0].fence


def _fence_above_counter(state: State) -> None:
    state.fence = 0


def _fences_fall(state: State) -> None:
    failed = job(state, "failed")
    failed.executions = (*failed.executions, replace(failed.executions[0], attempt=2, fence=0))
    failed.attempt = 2


def _wrong_head(state: State) -> None:
    lane(state).head = job(state, "l2")


def _miscount_waiting(state: State) -> None:
    lane(state).waiting_count = 7


def _leased_behind_head(state: State) -> None:
    run(state, c.Claim("worker", ["queue"], 1, ["x"]), NOW)
    job(state, "l2").state = JobState.LEASED


def _idle_lane(state: State) -> None:
    state.lanes["queue", "idle"] = Lane()


def _offset_ended_and_waiting(state: State) -> None:
    finished = state.lanes["offsets", "lane"].finished
    assert finished is not None
    finished.add(2)


def _ranges_touch(state: State) -> None:
    state.lanes["offsets", "lane"].failed = Ranges([(5, 6), (7, 8)])


def _miscount(state: State) -> None:
    state.queues["queue"].counts[JobState.READY] += 1


def _wrong_order(state: State) -> None:
    job(state, "r1").available_at += 1


def _leave_order(state: State) -> None:
    state.queues["queue"].ready[0] = None


def _lose_a_lease(state: State) -> None:
    execution = job(state, "leased").executions[0]
    execution.expires_at += 1


def _lose_a_request(state: State) -> None:
    state.claims.clear()


def _lose_the_kept(state: State) -> None:
    state.unsuccessful.discard(job(state, "failed").seq)


def _lose_a_success(state: State) -> None:
    run(state, c.Ack([c.AckReport("committed", "t3")]), NOW)
    run(state, c.Ack([c.AckReport("leased", "t1")]), NOW + 1)
    job(state, "committed").executions[0].finished_at = NOW + 2


def _enqueue_where_acquire_is_used(state: State) -> None:
    apply(state, JobEnqueued(JobSpec("stray", "offsets", "kind"), NOW))


def _acquire_where_enqueue_is_used(state: State) -> None:
    apply(state, JobEnqueued(JobSpec("queue/lane/1", "queue", "kind", lane="offsets", offset=1), NOW))


BREAKS: list[tuple[Callable[[State], None], str]] = [
    (_misplace, "not found by its id"),
    (_lose_from_listing, "not found by its id"),
    (_lie_about_state, "its executions imply"),
    (_live_twice, "has 2 live leases"),
    (_lease_and_ready, "is ready with 1 live leases"),
    (_commit_twice, "committed 2 times"),
    (_abort_after_commit, "committed and then aborted"),
    (_attempt_back, "counted 0"),
    (_token_twice, "twice under one token"),
    (_retry_beyond, "retried 4 times"),
    (_refuse_twice, "refusal recorded twice"),
    (_share_a_fence, "share a fence"),
    (_fence_above_counter, "above the counter"),
    (_fences_fall, "do not rise"),
    (_wrong_head, "does not have its first job as head"),
    (_miscount_waiting, "counts 7 waiting"),
    (_leased_behind_head, "leased job behind its head"),
    (_idle_lane, "idle and still there"),
    (_offset_ended_and_waiting, "both ended and waiting"),
    (_ranges_touch, "not apart"),
    (_miscount, "queue queue counts"),
    (_wrong_order, "another order"),
    (_leave_order, "another order"),
    (_lose_a_lease, "leases found by time"),
    (_lose_a_request, "claims known by request"),
    (_lose_the_kept, "failed, dead and cancelled jobs listed"),
    (_lose_a_success, "retention would forget"),
    (_enqueue_where_acquire_is_used, "came by enqueue into queue offsets, which is used with acquire"),
    (_acquire_where_enqueue_is_used, "came by acquire into queue queue, which is used with claim"),
]


@rule("X2", "X4", "N1", "I3", "I7")
@pytest.mark.parametrize(("break_it", "sentence"), BREAKS, ids=lambda value: getattr(value, "__name__", "").strip("_"))
def test_a_broken_state_is_distinguished_from_a_sound_one(break_it: Callable[[State], None], sentence: str) -> None:
    state = sound_state()
    break_it(state)
    found = violations(state)
    assert any(sentence in violation for violation in found), found
