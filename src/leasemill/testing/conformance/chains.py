"""B6: chains, of which each job is enqueued by the success of the one before."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec.structs import replace

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.commands import Conflict, Duplicate, Followup
from leasemill.kernel.model import SECOND, ChainedJob, JobState, Policy, Rules, UniqueKey
from leasemill.testing.conformance.group_steps import BOTH, END, GROUP, NONE, callbacks, counts, create, seal
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.schedule_steps import CALL, every_minute, fire_next, set_schedule
from leasemill.testing.conformance.steps import (
    LANE,
    QUEUE,
    ack,
    acked,
    acquire_one,
    cancelled,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    died,
    enqueue,
    enqueue_one,
    every_job,
    expired,
    failed_for_good,
    job_of,
    let_expire,
    nacked,
    only,
    redrive,
    refused,
    released,
    spec,
    start,
    started,
    state_of,
)
from leasemill.testing.rules import rule

SECOND_JOB: Final = ChainedJob(QUEUE, "second", b'{"a":1}')
THIRD_JOB: Final = ChainedJob(QUEUE, "third")
CHAIN: Final = Rules(chain=(SECOND_JOB, THIRD_JOB))


def ids(harness: Harness) -> list[str]:
    return [job.spec.id for job in every_job(harness)]


class Chaining:
    @rule("B6")
    def test_each_success_enqueues_the_next(self, harness: Harness) -> None:
        enqueue_one(harness, rules=CHAIN)
        assert ids(harness) == ["job"]
        acked(harness, claim_one(harness))
        second = job_of(harness, "job/then")
        assert (second.spec.kind, second.spec.payload) == ("second", b'{"a":1}')
        assert second.spec.rules == Rules(chain=(THIRD_JOB,))
        acked(harness, claim_one(harness))
        third = job_of(harness, "job/then/then")
        assert (third.spec.kind, third.spec.rules) == ("third", None)
        acked(harness, claim_one(harness))
        assert ids(harness) == ["job", "job/then", "job/then/then"]

    @rule("B6", "L6")
    def test_a_repeated_end_enqueues_nothing_more(self, harness: Harness) -> None:
        enqueue_one(harness, rules=CHAIN)
        lease = claim_one(harness)
        acked(harness, lease)
        assert acked(harness, lease).is_repeat
        assert ids(harness) == ["job", "job/then"]

    @rule("B6", "X5")
    @pytest.mark.parametrize("by", ["ack", "expire", "death", "nack", "release", "cancel", "a refused report"])
    def test_a_committed_job_goes_on_however_it_ends(self, harness: Harness, by: str) -> None:
        enqueue_one(harness, rules=CHAIN)
        lease = claim_one(harness)
        committed(harness, lease, result=b"1")
        assert ids(harness) == ["job"]
        match by:
            case "ack":
                acked(harness, lease)
            case "expire":
                expired(harness, lease)
            case "death":
                died(harness, lease)
            case "nack":
                nacked(harness, lease)
            case "release":
                released(harness, lease)
            case "cancel":
                cancelled(harness, "job")
            case _:
                let_expire(harness, lease)
                refused(start(harness, lease))
        assert ids(harness) == ["job", "job/then"]
        assert state_of(harness) is JobState.SUCCEEDED

    @rule("B6")
    @pytest.mark.parametrize("end", ["failed", "dead", "died", "cancelled"])
    def test_a_failure_ends_the_chain_and_a_redrive_goes_on(self, harness: Harness, end: str) -> None:
        enqueue_one(harness, rules=CHAIN, policy=Policy(max_expirations=1))
        lease = claim_one(harness)
        started(harness, lease)
        match end:
            case "failed":
                failed_for_good(harness, lease)
            case "dead":
                expired(harness, lease)
            case "died":
                died(harness, lease)
            case _:
                cancelled(harness, "job")
        assert ids(harness) == ["job"]
        redrive(harness, "job", include_cancelled=True)
        acked(harness, claim_one(harness))
        assert ids(harness) == ["job", "job/then"]

    @rule("B6")
    def test_the_result_is_handed_on(self, harness: Harness) -> None:
        chain = (
            ChainedJob(QUEUE, "second", b'{"a": 1}', result_name="found"),
            ChainedJob(QUEUE, "third", b"{}", result_name="found"),
        )
        enqueue_one(harness, rules=Rules(chain=chain))
        acked(harness, claim_one(harness), b'{"x":[1]}')
        assert job_of(harness, "job/then").spec.payload == b'{"a": 1,"found":{"x":[1]}}'
        lease = claim_one(harness)
        committed(harness, lease, result=b'"kept"')
        acked(harness, lease, b'"ignored"')
        assert job_of(harness, "job/then/then").spec.payload == b'{"found":"kept"}'

    @rule("B6")
    def test_headers_are_handed_on_to_jobs_without_their_own(self, harness: Harness) -> None:
        chain = (SECOND_JOB, ChainedJob(QUEUE, "third", headers={"trace": "own"}), ChainedJob(QUEUE, "fourth"))
        enqueue_one(harness, rules=Rules(chain=chain), headers={"trace": "first"})
        for job_id, trace in (("job", "first"), ("job/then", "first"), ("job/then/then", "own")):
            assert job_of(harness, job_id).spec.headers == {"trace": trace}
            acked(harness, claim_one(harness))
        assert job_of(harness, "job/then/then/then").spec.headers == {"trace": "own"}

    @rule("B6", "B5")
    def test_a_group_waits_for_the_whole_chain(self, harness: Harness) -> None:
        create(harness)
        enqueue_one(harness, rules=Rules(group=GROUP, chain=(SECOND_JOB, THIRD_JOB)))
        seal(harness)
        for total in (1, 2, 3):
            assert counts(harness) == (total, total - 1, 0, 0, 0, 1)
            assert callbacks(harness) == NONE
            acked(harness, claim_one(harness))
        assert counts(harness) == (3, 3, 0, 0, 0, 0)
        assert callbacks(harness) == BOTH

    @rule("B6", "B2")
    def test_a_failure_ends_a_chain_in_a_group(self, harness: Harness) -> None:
        create(harness)
        enqueue_one(harness, rules=Rules(group=GROUP, chain=(SECOND_JOB,)))
        seal(harness)
        failed_for_good(harness, claim_one(harness))
        claim_nothing(harness)
        assert counts(harness) == (1, 0, 1, 0, 0, 0)
        assert callbacks(harness) == END

    @rule("B6", "B2", "U1")
    def test_a_chained_job_whose_key_is_held_is_merged_and_ends_the_chain(self, harness: Harness) -> None:
        key = UniqueKey("mine")
        enqueue_one(harness, "holder", delay_us=SECOND, rules=Rules(unique=key))
        create(harness)
        second = ChainedJob(QUEUE, "second", unique=key)
        enqueue_one(harness, rules=Rules(group=GROUP, chain=(second, THIRD_JOB)))
        seal(harness)
        acked(harness, claim_one(harness))
        claim_nothing(harness)
        assert counts(harness) == (1, 1, 0, 0, 0, 0)
        assert callbacks(harness) == BOTH
        harness.clock.advance(us=SECOND)
        acked(harness, claim_one(harness))
        enqueue_one(harness, "again", rules=Rules(chain=(second, THIRD_JOB)))
        acked(harness, claim_one(harness))
        assert state_of(harness, "again/then") is JobState.READY

    @rule("B6", "N2")
    def test_a_chain_may_stay_in_its_lane(self, harness: Harness) -> None:
        chain = (ChainedJob(QUEUE, "second", lane=LANE),)
        enqueue_one(harness, lane=LANE, rules=Rules(chain=chain))
        enqueue_one(harness, "between", lane=LANE)
        acked(harness, claim_one(harness))
        acked(harness, claim_one(harness))
        assert claim_ids(harness) == ["job/then"]

    @rule("B6", "E3")
    def test_a_chained_job_waits_for_its_delay(self, harness: Harness) -> None:
        enqueue_one(harness, rules=Rules(chain=(ChainedJob(QUEUE, "second", delay_us=1_000_000),)))
        acked(harness, claim_one(harness))
        claim_nothing(harness)
        harness.clock.advance(s=1)
        assert claim_ids(harness) == ["job/then"]

    @rule("B6", "X6")
    def test_a_followup_may_begin_a_chain(self, harness: Harness) -> None:
        enqueue_one(harness)
        lease = claim_one(harness)
        committed(harness, lease, followups=[Followup(QUEUE, "kind", rules=CHAIN)])
        acked(harness, claim_one(harness))
        assert ids(harness) == ["job", "job/0", "job/0/then"]

    @rule("B6", "E2", "E4")
    def test_a_chain_is_content(self, harness: Harness) -> None:
        job = enqueue_one(harness, rules=CHAIN)
        assert enqueue(harness, job) == Duplicate("job")
        assert enqueue(harness, spec()) == Conflict("job")

    @rule("B6", "E5")
    def test_a_chain_is_not_begun_again_while_its_next_job_is_there(self, harness: Harness) -> None:
        job = enqueue_one(harness, rules=CHAIN)
        acked(harness, claim_one(harness))
        harness.clock.advance(s=1)
        harness.store.prune(harness.clock.now(), keep=0)
        assert ids(harness) == ["job/then"]
        assert enqueue(harness, job) == Conflict("job")

    @rule("B6", "I7")
    def test_a_chain_goes_to_queues_that_are_claimed(self, harness: Harness) -> None:
        acquire_one(harness, 1, queue="acquired")
        with pytest.raises(QueueRefused):
            enqueue(harness, spec(rules=Rules(chain=(ChainedJob("acquired", "kind"),))))
        enqueue_one(harness, rules=Rules(chain=(ChainedJob("later", "kind"),)))
        with pytest.raises(QueueRefused):
            acquire_one(harness, 1, queue="later")

    @rule("B6", "I7")
    @pytest.mark.parametrize("by", ["enqueue", "commit", "tick", "redrive"])
    def test_the_queues_of_a_chain_cannot_be_acquired_before_it_gets_there(self, harness: Harness, by: str) -> None:
        rules = Rules(chain=(ChainedJob("second", "kind"), ChainedJob("third", "kind")))
        match by:
            case "commit":
                enqueue_one(harness, "parent")
                parent = claim_one(harness)
                committed(harness, parent, followups=[Followup(QUEUE, "kind", rules=rules)])
                acked(harness, parent)
            case "tick":
                set_schedule(harness, every_minute(call=replace(CALL, rules=rules)))
                fire_next(harness)
            case _:
                enqueue_one(harness, rules=rules)
        lease = claim_one(harness)
        if by == "redrive":
            failed_for_good(harness, lease)
            redrive(harness, lease.job.id)
            lease = claim_one(harness)
        for queue in ("second", "third"):
            harness.reopen()
            with pytest.raises(QueueRefused):
                acquire_one(harness, 1, queue=queue)
            acked(harness, lease)
            lease = only(claim(harness, queues=[queue]))
        acked(harness, lease)

    @rule("B6", "I4")
    def test_a_malformed_chain_is_refused(self, harness: Harness) -> None:
        for chain in (
            (ChainedJob("no such name!", "kind"),),
            (SECOND_JOB, ChainedJob(QUEUE, "kind", b"not json")),
            (ChainedJob(QUEUE, "kind", b"[]", result_name="found"),),
            (SECOND_JOB,) * 101,
            (ChainedJob(QUEUE, "kind", b'"' + b"x" * 70_000 + b'"'),) * 2,
        ):
            with pytest.raises(Invalid):
                enqueue(harness, spec(rules=Rules(chain=chain)))
        assert every_job(harness) == []

    @rule("B6", "I6")
    def test_a_long_chain_has_short_ids(self, harness: Harness) -> None:
        enqueue_one(harness, "x" * 90, rules=Rules(chain=(SECOND_JOB,) * 40))
        for _ in range(41):
            lease = claim_one(harness)
            assert len(lease.job.id) <= 200
            ack(harness, lease)
        claim_nothing(harness)
        assert len(every_job(harness)) == 41
