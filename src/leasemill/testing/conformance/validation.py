"""I4: what is not well formed is refused before anything happens, with a sentence about what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import (
    Ack,
    AckReport,
    Acquire,
    AcquireRequest,
    Cancel,
    Claim,
    Command,
    Commit,
    Enqueue,
    Expire,
    Extend,
    Followup,
    JobFilter,
    LeaseRef,
    ListActions,
    ListJobs,
    ListLanes,
    ListQueues,
    Nack,
    NackReport,
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
from leasemill.kernel.model import SECOND, Policy
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LANE,
    OFFSETS,
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    acquire_one,
    claim_one,
    enqueue_many,
    everything,
    new_token,
    spec,
)
from leasemill.testing.rules import rule

BAD_POLICY: Final = Policy(max_retries=-1)
DEEP: Final = b"[" * 100_000 + b"]" * 100_000
DEEPEST: Final = b'{"a":' * 499 + b"[]" + b"}" * 499
LONGEST_US: Final = 3_660 * 24 * 3_600 * SECOND


def enqueue(**fields: Any) -> Command[Any]:
    """A batch whose second item is malformed."""
    return Enqueue([spec("good"), spec(fields.pop("id", "bad"), **fields), spec("also good")])


def claim(**fields: Any) -> Command[Any]:
    given: dict[str, Any] = {
        "worker": "worker",
        "queues": [QUEUE],
        "limit": 1,
        "tokens": [new_token()],
        "request_id": "request",
    }
    return Claim(**(given | fields))


def acquire(**fields: Any) -> Command[Any]:
    good = AcquireRequest(OFFSETS, LANE, 1, "worker", new_token())
    given: dict[str, Any] = {"queue": OFFSETS, "lane": LANE, "offset": 2, "worker": "worker", "token": new_token()}
    return Acquire([good, AcquireRequest(**(given | fields))])


ON_THEIR_OWN: Final[dict[str, Command[Any]]] = {
    "id empty": enqueue(id=""),
    "id too long": enqueue(id="i" * 201),
    "id with a line break": enqueue(id="a\nb"),
    "id with a NUL": enqueue(id="a\0b"),
    "queue empty": enqueue(queue=""),
    "queue too long": enqueue(queue="q" * 101),
    "queue with a space": enqueue(queue="a b"),
    "queue with a slash": enqueue(queue="a/b"),
    "queue with a letter of another alphabet": enqueue(queue="é"),
    "queue that begins with a dash": enqueue(queue="-a"),
    "queue that ends with a line break": enqueue(queue="a\n"),
    "kind empty": enqueue(kind=""),
    "kind too long": enqueue(kind="k" * 101),
    "kind with a space": enqueue(kind="a b"),
    "lane empty": enqueue(lane=""),
    "lane too long": enqueue(lane="l" * 201),
    "lane with a tab": enqueue(lane="a\tb"),
    "payload empty": enqueue(payload=b""),
    "payload not JSON": enqueue(payload=b"{a: 1}"),
    "payload two values": enqueue(payload=b"1 2"),
    "payload not UTF-8": enqueue(payload=b'"\xff"'),
    "payload too large": enqueue(payload=b'"' + b"x" * (1024 * 1024 - 1) + b'"'),
    "payload too deep": enqueue(payload=DEEP),
    "payload one level too deep": enqueue(payload=b"[1,%s]" % DEEPEST),
    "priority below": enqueue(priority=-1),
    "priority above": enqueue(priority=10),
    "run_at below": enqueue(run_at=-1),
    "run_at above": enqueue(run_at=253_402_300_800 * SECOND),
    "run_at and delay": enqueue(run_at=5, delay_us=5),
    "delay below": enqueue(delay_us=-1),
    "delay above": enqueue(delay_us=LONGEST_US + 1),
    "policy": enqueue(policy=BAD_POLICY),
    "offset without acquire": enqueue(lane=LANE, offset=1),
    "too many jobs": Enqueue([spec(f"job-{number}") for number in range(10_001)]),
    "claim: worker empty": claim(worker=""),
    "claim: worker too long": claim(worker="w" * 201),
    "claim: no queue": claim(queues=[]),
    "claim: queue": claim(queues=[QUEUE, "a b"]),
    "claim: limit below": claim(limit=0, tokens=[]),
    "claim: limit above": claim(limit=10_001, tokens=[str(number) for number in range(10_001)]),
    "claim: too few tokens": claim(limit=2),
    "claim: a token twice": claim(limit=2, tokens=["same", "same"]),
    "claim: request id empty": claim(request_id=""),
    "claim: request id too long": claim(request_id="r" * 201),
    "claim: kind's policy": claim(kinds={"kind": BAD_POLICY}),
    "claim: kind's name": claim(kinds={"a b": Policy()}),
    "expire: limit below": Expire(0),
    "expire: limit above": Expire(10_001),
    "acquire: queue": acquire(queue="a b"),
    "acquire: lane empty": acquire(lane=""),
    "acquire: lane too long": acquire(lane="l" * 201),
    "acquire: worker empty": acquire(worker=""),
    "acquire: kind": acquire(kind="a b"),
    "acquire: payload": acquire(payload=b"x"),
    "acquire: policy": acquire(policy=BAD_POLICY),
    "acquire: offset below": acquire(offset=-1),
    "acquire: offset above": acquire(offset=2**63 - 1),
    "cancel: by nobody": Cancel(["a"], "", WHY),
    "cancel: for no reason": Cancel(["a"], OPERATOR, ""),
    "cancel: reason too long": Cancel(["a"], OPERATOR, "r" * 1_001),
    "cancel: too many": Cancel([str(number) for number in range(10_001)], OPERATOR, WHY),
    "redrive: by nobody": Redrive(JobFilter(), "", WHY, 1),
    "redrive: for no reason": Redrive(JobFilter(), OPERATOR, "", 1),
    "redrive: limit": Redrive(JobFilter(), OPERATOR, WHY, 0),
    "purge: by nobody": Purge(JobFilter(), "", WHY, 1),
    "purge: for no reason": Purge(JobFilter(), OPERATOR, "", 1),
    "purge: limit": Purge(JobFilter(), OPERATOR, WHY, 10_001),
    "pause: queue": Pause("a b", OPERATOR, WHY),
    "pause: by nobody": Pause(QUEUE, "", WHY),
    "resume: queue": Resume("a b", OPERATOR, WHY),
    "resume: for no reason": Resume(QUEUE, OPERATOR, ""),
    "set_policy: queue": SetPolicy("a b", Policy(), OPERATOR, WHY),
    "set_policy: policy": SetPolicy(QUEUE, BAD_POLICY, OPERATOR, WHY),
    "set_policy: by nobody": SetPolicy(QUEUE, Policy(), "", WHY),
    "prune: limit": Prune(2**50, 0, 0),
    "prune: keep": Prune(2**50, -1, 1),
    "jobs: limit below": ListJobs(JobFilter(), 0),
    "jobs: limit above": ListJobs(JobFilter(), 10_001),
    "jobs: header": ListJobs(JobFilter(headers={"a b": "x"}), 1),
    "jobs: value of a header": ListJobs(JobFilter(headers={"a": "x\0"}), 1),
    "redrive: header": Redrive(JobFilter(headers={"": "x"}), OPERATOR, WHY, 1),
    "purge: header": Purge(JobFilter(headers={"a": "x\0"}), OPERATOR, WHY, 1),
    "queues: limit": ListQueues(0),
    "lanes: limit": ListLanes(QUEUE, 0),
    "actions: limit": ListActions(0),
}

Pair = tuple[str, str]

OF_A_HOLDER: Final[dict[str, Callable[[Pair, Pair], Command[Any]]]] = {
    "start: age below": lambda a, b: Start([StartReport(*a), StartReport(*b, -1)]),
    "start: too many": lambda a, _: Start([StartReport(*a)] * 10_001),
    "extend: too many": lambda a, _: Extend([LeaseRef(*a)] * 10_001),
    "commit: result not JSON": lambda a, _: Commit(*a, result=b"x"),
    "commit: result too large": lambda a, _: Commit(*a, result=b'"' + b"x" * (1024 * 1024 - 1) + b'"'),
    "commit: follow-up's queue": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k"), Followup("a b", "k")]),
    "commit: follow-up's kind": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "")]),
    "commit: follow-up's payload": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k", b"x")]),
    "commit: follow-up's lane": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k", lane="")]),
    "commit: follow-up's priority": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k", priority=10)]),
    "commit: follow-up's times": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k", run_at=1, delay_us=1)]),
    "commit: follow-up's policy": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k", policy=BAD_POLICY)]),
    "commit: too much in follow-ups": lambda a, _: Commit(
        *a, followups=[Followup(QUEUE, "k", b'"' + b"x" * 1_000_000 + b'"')] * 68
    ),
    "commit: too many follow-ups": lambda a, _: Commit(*a, followups=[Followup(QUEUE, "k")] * 1_001),
    "ack: result not JSON": lambda a, b: Ack([AckReport(*a), AckReport(*b, b"x")]),
    "ack: too many": lambda a, _: Ack([AckReport(*a)] * 10_001),
    "nack: jitter below": lambda a, b: Nack([NackReport(*a, "broke"), NackReport(*b, "broke", jitter=-0.1)]),
    "nack: jitter above": lambda a, b: Nack([NackReport(*a, "broke"), NackReport(*b, "broke", jitter=1.0)]),
    "nack: delay below": lambda a, b: Nack([NackReport(*a, "broke"), NackReport(*b, "broke", delay_us=-1)]),
    "nack: delay above": lambda a, _: Nack([NackReport(*a, "broke", delay_us=LONGEST_US + 1)]),
    "nack: a lease kept without a report id": lambda a, _: Nack([NackReport(*a, "broke", keep_lease=True)]),
    "release: delay below": lambda a, b: Release([ReleaseReport(*a), ReleaseReport(*b, -1)]),
    "release: error too long": lambda a, b: Release([ReleaseReport(*a), ReleaseReport(*b, None, "x" * 1_000_001)]),
    "release: too many": lambda a, _: Release([ReleaseReport(*a)] * 10_001),
}


class Refusing:
    @rule("I4")
    @pytest.mark.parametrize("name", ON_THEIR_OWN)
    def test_a_malformed_command_is_refused_whole(self, harness: Harness, name: str) -> None:
        self._some_jobs(harness)
        before = everything(harness)
        with pytest.raises(Invalid) as caught:
            harness.store.run(ON_THEIR_OWN[name])
        assert len(str(caught.value)) > 10
        assert everything(harness) == before

    @rule("I4")
    @pytest.mark.parametrize("name", OF_A_HOLDER)
    def test_a_malformed_report_is_refused_whole_and_costs_no_lease(self, harness: Harness, name: str) -> None:
        first, second = self._some_jobs(harness)
        before = everything(harness)
        with pytest.raises(Invalid):
            harness.store.run(OF_A_HOLDER[name](first, second))
        assert everything(harness) == before
        assert harness.store.extend([LeaseRef(*first), LeaseRef(*second)])

    @rule("I4")
    def test_the_deepest_payload_is_carried(self, harness: Harness) -> None:
        harness.store.enqueue([spec("deep", payload=DEEPEST)])
        (lease,) = harness.store.claim("worker", [QUEUE], 1)
        assert lease.job.payload == DEEPEST

    @rule("I4")
    def test_a_claim_for_far_too_many_is_refused(self, harness: Harness) -> None:
        with pytest.raises(Invalid):
            harness.store.claim("worker", [QUEUE], 10**12)

    def _some_jobs(self, harness: Harness) -> tuple[Pair, Pair]:
        enqueue_many(harness, "done", "first", "second", "ready")
        acked(harness, claim_one(harness))
        first, second = claim_one(harness), claim_one(harness)
        acquire_one(harness, 1, lane="other")
        return (first.job.id, first.token), (second.job.id, second.token)
