"""X: which states jobs and executions move between, and by what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from leasemill.kernel.commands import Expiration, Lease
from leasemill.kernel.model import (
    AbortReason,
    Execution,
    ExecutionStatus,
    Job,
    JobState,
    Terms,
    derived_state,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.states import STATES, job_in
from leasemill.testing.conformance.steps import (
    LEASE_US,
    OTHER,
    ack,
    acked,
    cancel,
    claim,
    claim_nothing,
    commit,
    enqueue_and_claim,
    expire,
    failed_for_good,
    job_of,
    last_execution,
    nack,
    purge,
    redrive,
    refused,
    release,
    start,
    state_of,
    status_of,
)
from leasemill.testing.rules import rule

READY, LEASED, SUCCEEDED, FAILED, DEAD, CANCELLED = JobState
GONE: Final = "gone"


def let_pass(harness: Harness) -> list[Expiration]:
    harness.clock.advance(us=LEASE_US)
    return expire(harness)


ACTS: Final[dict[str, Callable[[Harness, Lease], object]]] = {
    "claim": lambda harness, _: claim(harness, worker=OTHER),
    "start": start,
    "commit": commit,
    "ack": ack,
    "nack": nack,
    "nack for good": lambda harness, lease: nack(harness, lease, is_permanent=True),
    "release": release,
    "expire": lambda harness, lease: let_pass(harness),
    "cancel": lambda harness, _: cancel(harness),
    "redrive": lambda harness, _: redrive(harness, "job"),
    "redrive cancelled": lambda harness, _: redrive(harness, "job", include_cancelled=True),
    "purge": lambda harness, _: purge(harness, "job"),
}

MOVES: Final[dict[str, dict[str, JobState | str]]] = {
    "ready": {"claim": LEASED, "cancel": CANCELLED},
    "retrying": {"cancel": CANCELLED},
    "redriven": {"claim": LEASED, "cancel": CANCELLED},
    "leased": {
        "ack": SUCCEEDED,
        "nack": READY,
        "nack for good": FAILED,
        "release": READY,
        "expire": READY,
        "cancel": CANCELLED,
    },
    "started": {
        "ack": SUCCEEDED,
        "nack": READY,
        "nack for good": FAILED,
        "release": READY,
        "expire": READY,
        "cancel": CANCELLED,
    },
    "committed": dict.fromkeys(["ack", "nack", "nack for good", "release", "expire", "cancel"], SUCCEEDED),
    "succeeded": {"purge": GONE},
    "failed": {"cancel": CANCELLED, "redrive": READY, "redrive cancelled": READY, "purge": GONE},
    "cancelled": {"redrive cancelled": READY, "purge": GONE},
    "cancelled in flight": {"redrive cancelled": READY, "purge": GONE},
    "quarantined": {"cancel": CANCELLED, "redrive": READY, "redrive cancelled": READY, "purge": GONE},
}
"""The contract's table: from a state, by an act, to a state; every other pair changes no state."""

STATUS_MOVES: Final[dict[tuple[ExecutionStatus, ExecutionStatus], frozenset[str]]] = {
    (ExecutionStatus.LEASED, ExecutionStatus.STARTED): frozenset({"start"}),
    (ExecutionStatus.LEASED, ExecutionStatus.COMMITTED): frozenset({"commit"}),
    (ExecutionStatus.STARTED, ExecutionStatus.COMMITTED): frozenset({"commit"}),
    (ExecutionStatus.LEASED, ExecutionStatus.DONE): frozenset({"ack"}),
    (ExecutionStatus.STARTED, ExecutionStatus.DONE): frozenset({"ack"}),
    (ExecutionStatus.COMMITTED, ExecutionStatus.DONE): frozenset(
        {"ack", "nack", "nack for good", "release", "expire", "cancel"}
    ),
    (ExecutionStatus.LEASED, ExecutionStatus.ABORTED): frozenset(
        {"nack", "nack for good", "release", "expire", "cancel"}
    ),
    (ExecutionStatus.STARTED, ExecutionStatus.ABORTED): frozenset(
        {"nack", "nack for good", "release", "expire", "cancel"}
    ),
}


def held_lease(harness: Harness, lease: Lease | None) -> Lease:
    """Return the job's lease, or for a job without one a lease that no worker has."""
    if lease is not None:
        return lease
    job = job_of(harness)
    return Lease(job.spec, "nobody's", 0, 0, OTHER, 0, 0, Terms(), 0, 0, job.created_at)


def latest(job: Job) -> Execution | None:
    return job.executions[-1] if job.executions else None


def check_execution(before: Execution | None, job: Job, act: str) -> None:
    """The execution that was the latest before the act has moved, or has not, as the contract says."""
    if before is None:
        return
    (after,) = [one for one in job.executions if one.attempt == before.attempt]
    by = STATUS_MOVES.get((before.status, after.status), frozenset())
    assert (before.status is after.status) != (act in by)
    assert before.status not in (ExecutionStatus.DONE, ExecutionStatus.ABORTED) or after == before


class Transitions:
    @rule("X1", "X2")
    @pytest.mark.parametrize("act", ACTS)
    @pytest.mark.parametrize("state", STATES)
    def test_a_job_and_its_executions_move_as_the_contract_says_and_in_no_other_way(
        self, harness: Harness, state: str, act: str
    ) -> None:
        """001's transition matrix, with what 002 to 004 add to it. 003: an execution is LEASED, IN_PROGRESS, COMMITTED,
        DONE, with ABORTED before the commit; nothing leads back."""
        lease = held_lease(harness, job_in(harness, state))
        before = job_of(harness)
        ACTS[act](harness, lease)
        after = harness.store.job("job")
        expected = MOVES[state].get(act, before.state)
        assert (GONE if after is None else after.state) == expected
        if after is not None:
            assert after.state is derived_state(after)
            assert after.attempt == before.attempt + (act == "claim" and state in ("ready", "redriven"))
            check_execution(latest(before), after, act)

    @rule("X2")
    @pytest.mark.parametrize("state", STATES)
    def test_the_jobs_state_is_what_its_executions_say(self, harness: Harness, state: str) -> None:
        """003: job state is computed from execution records and never set on its own."""
        job_in(harness, state)
        assert job_of(harness).state is derived_state(job_of(harness))

    @rule("X2")
    @pytest.mark.parametrize("state", STATES)
    def test_a_job_has_a_live_lease_exactly_while_it_is_leased(self, harness: Harness, state: str) -> None:
        """004: a task in WAITING has no lease, one in LEASED has exactly one."""
        lease = job_in(harness, state)
        live = [one for one in job_of(harness).executions if one.finished_at is None]
        assert len(live) == (state_of(harness) is LEASED) == (lease is not None)

    @rule("X1", "F2")
    def test_succeeded_is_for_ever(self, harness: Harness) -> None:
        """004: completed tasks never transition again."""
        lease = enqueue_and_claim(harness)
        acked(harness, lease)
        before = job_of(harness)
        harness.clock.advance(us=10 * LEASE_US)
        refused(nack(harness, lease))
        cancel(harness)
        redrive(harness, "job")
        expire(harness)
        claim_nothing(harness)
        after = job_of(harness)
        assert (after.state, after.executions) == (before.state, before.executions)

    @rule("X1")
    def test_an_aborted_execution_never_comes_back(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        failed_for_good(harness, lease)
        refused(ack(harness, lease))
        refused(commit(harness, lease))
        assert (status_of(harness), last_execution(harness).reason) == (ExecutionStatus.ABORTED, AbortReason.FAILED)
