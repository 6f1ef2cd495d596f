"""Commands whose reply is lost, and which are sent again as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from leasemill.kernel.commands import (
    Ack,
    AckReport,
    Acquire,
    Acquired,
    AcquireRequest,
    AlreadyAcquired,
    Backlogged,
    Cancel,
    Command,
    Commit,
    Duplicate,
    Enqueue,
    Extend,
    Followup,
    JobFilter,
    LeaseRef,
    Nack,
    NackReport,
    Operated,
    Pause,
    Prune,
    Purge,
    Redrive,
    Release,
    ReleaseReport,
    Resume,
    SetPolicy,
    Start,
    StartReport,
)
from leasemill.kernel.model import Policy
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.states import job_in
from leasemill.testing.conformance.steps import (
    LANE,
    LEASE_US,
    OFFSETS,
    OPERATOR,
    QUEUE,
    WHY,
    WORKER,
    acked,
    acquire_one,
    committed,
    enqueue_and_claim,
    failed_for_good,
    new_token,
    pause,
    spec,
)


@dataclass(frozen=True)
class Repeat:
    """`prepare` gives the command, `again` what its repeat answers; it still does so `later_us` later."""

    prepare: Callable[[Harness], Command[Any]]
    again: Callable[[Any], Any]
    later_us: int = 0


def _same(answer: Any) -> Any:
    return answer


def _marked(answer: Any) -> Any:
    """The same answers, marked as repeats."""
    if isinstance(answer, list):
        return [replace(one, is_repeat=True) for one in answer]
    return replace(answer, is_repeat=True)


def _report(make: Callable[[str, str], Command[Any]], *, after_commit: bool = False) -> Callable[[Harness], Any]:
    def prepare(harness: Harness) -> Command[Any]:
        lease = enqueue_and_claim(harness)
        if after_commit:
            committed(harness, lease, result=b"1")
        return make(lease.job.id, lease.token)

    return prepare


def _nack_with_lane(harness: Harness) -> Command[Any]:
    lease = enqueue_and_claim(harness, lane=LANE)
    harness.store.enqueue([spec("behind", lane=LANE)])
    return Nack([NackReport(lease.job.id, lease.token, "broke", is_permanent=True)])


def _ack_with_lane(harness: Harness) -> Command[Any]:
    lease = enqueue_and_claim(harness, lane=LANE)
    harness.store.enqueue([spec("behind", lane=LANE)])
    return Ack([AckReport(lease.job.id, lease.token)])


def _acquire(harness: Harness) -> Command[Any]:
    return Acquire([AcquireRequest(OFFSETS, LANE, 1, WORKER, new_token())])


def _acquire_behind(harness: Harness) -> Command[Any]:
    acquire_one(harness, 1)
    return Acquire([AcquireRequest(OFFSETS, LANE, 2, WORKER, new_token())])


def _ack_acquired(harness: Harness) -> Command[Any]:
    lease = acquire_one(harness, 1)
    return Ack([AckReport(lease.job.id, lease.token)])


def _keep_lease(job_id: str, token: str) -> Command[Any]:
    return Nack([NackReport(job_id, token, "broke", keep_lease=True, report_id="first")])


def _cancel(state: str) -> Callable[[Harness], Command[Any]]:
    def prepare(harness: Harness) -> Command[Any]:
        job_in(harness, state)
        return Cancel(["job"], OPERATOR, WHY)

    return prepare


def _redrive(harness: Harness) -> Command[Any]:
    failed_for_good(harness, enqueue_and_claim(harness))
    return Redrive(JobFilter(queue=QUEUE), OPERATOR, WHY, 10)


def _purge(harness: Harness) -> Command[Any]:
    acked(harness, enqueue_and_claim(harness))
    return Purge(JobFilter(queue=QUEUE), OPERATOR, WHY, 10)


def _prune(harness: Harness) -> Command[Any]:
    acked(harness, enqueue_and_claim(harness))
    return Prune(harness.clock.now() + 1, 10, 10)


def _resume(harness: Harness) -> Command[Any]:
    pause(harness)
    return Resume(QUEUE, OPERATOR, WHY)


REPEATS: Final[dict[str, Repeat]] = {
    "enqueue": Repeat(
        lambda _: Enqueue([spec("a"), spec("b")]), lambda answer: [Duplicate(one.job_id) for one in answer], LEASE_US
    ),
    "start": Repeat(_report(lambda job, token: Start([StartReport(job, token, 5)])), _same, LEASE_US - 1),
    "extend": Repeat(_report(lambda job, token: Extend([LeaseRef(job, token)])), _same),
    "commit": Repeat(
        _report(lambda job, token: Commit(job, token, b"1", [Followup("later", "kind")])), _marked, 2 * LEASE_US
    ),
    "commit of nothing": Repeat(_report(Commit), _marked, 2 * LEASE_US),
    "ack": Repeat(_report(lambda job, token: Ack([AckReport(job, token, b"1")])), _marked, 2 * LEASE_US),
    "ack after commit": Repeat(
        _report(lambda job, token: Ack([AckReport(job, token)]), after_commit=True), _marked, 2 * LEASE_US
    ),
    "ack in a lane": Repeat(_ack_with_lane, _marked, 2 * LEASE_US),
    "ack of an offset": Repeat(_ack_acquired, _marked, 2 * LEASE_US),
    "nack": Repeat(
        _report(lambda job, token: Nack([NackReport(job, token, "broke", jitter=0.5)])), _marked, 2 * LEASE_US
    ),
    "nack for good": Repeat(
        _report(lambda job, token: Nack([NackReport(job, token, "broke", is_permanent=True)])), _marked, 2 * LEASE_US
    ),
    "nack in a lane": Repeat(_nack_with_lane, _marked, 2 * LEASE_US),
    "nack after commit": Repeat(
        _report(lambda job, token: Nack([NackReport(job, token, "broke")]), after_commit=True), _marked, 2 * LEASE_US
    ),
    "nack that keeps the lease": Repeat(_report(_keep_lease), _marked, LEASE_US),
    "release": Repeat(
        _report(lambda job, token: Release([ReleaseReport(job, token, 5, "why")])), _marked, 2 * LEASE_US
    ),
    "release after commit": Repeat(
        _report(lambda job, token: Release([ReleaseReport(job, token)]), after_commit=True), _marked, 2 * LEASE_US
    ),
    "acquire": Repeat(
        _acquire,
        lambda answer: [AlreadyAcquired(one.lease) for one in answer if isinstance(one, Acquired)],
        LEASE_US,
    ),
    "acquire behind another": Repeat(
        _acquire_behind, lambda answer: [Backlogged(one.job_id) for one in answer], LEASE_US
    ),
    "cancel of a ready job": Repeat(_cancel("ready"), _marked, LEASE_US),
    "cancel of a leased job": Repeat(_cancel("leased"), _marked, LEASE_US),
    "cancel of a failed job": Repeat(_cancel("failed"), _marked, LEASE_US),
    "redrive": Repeat(_redrive, lambda _: Operated((), None), LEASE_US),
    "purge": Repeat(_purge, lambda _: Operated((), None), LEASE_US),
    "prune": Repeat(_prune, lambda _: 0, LEASE_US),
    "pause": Repeat(lambda _: Pause(QUEUE, OPERATOR, WHY), _same, LEASE_US),
    "resume": Repeat(_resume, _same, LEASE_US),
    "set_policy": Repeat(lambda _: SetPolicy(QUEUE, Policy(max_retries=1), OPERATOR, WHY), _same, LEASE_US),
}
