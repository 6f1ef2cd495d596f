"""L: a lease is a permission that time takes back, and that its holder extends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leasemill.kernel.commands import (
    AckReport,
    AcquireRequest,
    Expiration,
    Lost,
)
from leasemill.kernel.model import (
    NEVER,
    SECOND,
    ExecutionStatus,
    JobState,
    LossReason,
    Policy,
    Verb,
)
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.steps import (
    LANE,
    LEASE_US,
    OTHER,
    QUEUE,
    REPORTS,
    WORKER,
    ack,
    acked,
    acquire_one,
    claim,
    claim_ids,
    claim_one,
    committed,
    enqueue_and_claim,
    enqueue_one,
    expire,
    expired,
    extend,
    extended,
    job_of,
    last_execution,
    let_expire,
    refused,
    started,
    state_of,
)
from leasemill.testing.rules import rule

every_report = pytest.mark.parametrize("verb", REPORTS)


class Leases:
    @rule("L1")
    @every_report
    def test_a_lease_is_held_until_just_before_it_ends(self, harness: Harness, verb: Verb) -> None:
        lease = enqueue_and_claim(harness)
        assert lease.expires_at == harness.clock.now() + LEASE_US
        harness.clock.advance(us=LEASE_US - 1)
        assert not isinstance(REPORTS[verb](harness, lease), Lost)

    @rule("L3", "L2", "L1")
    @every_report
    def test_an_expired_lease_is_refused_although_nobody_took_the_job(self, harness: Harness, verb: Verb) -> None:
        """004: completion needs a lease that has not expired; 001 and 002 would have taken it by its token."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US)
        lost = refused(REPORTS[verb](harness, lease), LossReason.EXPIRED)
        assert lost == Lost("job", verb, LossReason.EXPIRED, attempt=1, current_attempt=1)
        assert state_of(harness) is JobState.READY
        assert job_of(harness).retries == 0

    @rule("L3", "L8")
    @every_report
    def test_a_lease_once_refused_for_its_age_is_never_revived(self, harness: Harness, verb: Verb) -> None:
        """A clock that steps back does not give a job back to who lost it."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US)
        refused(REPORTS[verb](harness, lease))
        harness.clock.advance(s=-20)
        for report in REPORTS.values():
            refused(report(harness, lease), LossReason.EXPIRED)
        assert claim_one(harness, worker=OTHER).attempt == 2

    @rule("L3", "L8")
    def test_an_expiry_that_was_recorded_holds_when_the_clock_steps_back(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        expired(harness, lease)
        harness.clock.advance(s=-20)
        refused(extend(harness, lease), LossReason.EXPIRED)
        assert claim_one(harness).attempt == 2

    @rule("L8")
    def test_a_clock_that_steps_forward_does_not_stop_time(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=1_000_000)
        assert [one.job_id for one in expire(harness)] == ["job"]
        again = claim_one(harness)
        harness.clock.advance(s=-1_000_000)
        assert again.expires_at > harness.clock.now()
        acked(harness, again)
        refused(ack(harness, lease))

    @rule("L7")
    def test_expire_records_what_time_has_decided(self, harness: Harness) -> None:
        """002: the reaper recovers what is stuck with an expired lease; 004: expiry is a fact of time."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US - 1)
        assert expire(harness) == []
        harness.clock.advance(us=1 + 5 * SECOND)
        (one,) = expire(harness)
        assert (one.job_id, one.worker, one.attempt) == ("job", WORKER, 1)
        assert (one.stuck_us, one.state) == (5 * SECOND, JobState.READY)
        assert last_execution(harness).finished_at == harness.clock.now()
        assert last_execution(harness).expires_at == lease.expires_at
        assert expire(harness) == []

    @rule("L7")
    def test_expire_takes_the_longest_expired_first_and_no_more_than_asked(self, harness: Harness) -> None:
        for seconds in (3, 1, 5, 2, 4):
            enqueue_and_claim(harness, f"job-{seconds}", policy=Policy(lease_ttl_us=seconds * SECOND))
        harness.clock.advance(s=4)
        assert [one.job_id for one in expire(harness, 2)] == ["job-1", "job-2"]
        assert [one.job_id for one in expire(harness, 10)] == ["job-3", "job-4"]
        assert state_of(harness, "job-5") is JobState.LEASED

    @rule("L7")
    def test_a_claim_that_would_give_nothing_records_expiries_first(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, queue="elsewhere")
        let_expire(harness, lease)
        assert claim_ids(harness) == []
        assert state_of(harness) is JobState.READY
        assert expire(harness) == []

    @rule("L7", "C3")
    def test_an_idle_worker_takes_over_what_has_expired_without_a_reaper(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        let_expire(harness, lease)
        (again,) = claim(harness)
        assert (again.job.id, again.attempt) == (lease.job.id, 2)

    @rule("L7", "C3")
    def test_a_claim_that_finds_a_job_records_expiries_too(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        opened = StayingOpen(harness)
        let_expire(opened, lease)
        enqueue_one(opened, "other")
        opened.clock.advance(s=2)
        assert claim_ids(opened, limit=1) == ["job"]
        assert expire(opened) == []

    @rule("L7", "N9")
    def test_expire_leaves_leases_without_end_alone(self, harness: Harness) -> None:
        lease = acquire_one(harness, 1)
        harness.clock.advance(s=1_000_000_000)
        assert expire(harness) == []
        assert extended(harness, lease) == NEVER

    @rule("L7", "L3")
    @pytest.mark.parametrize("recorder", ["expire", "claim", "late report", "acquire"])
    def test_an_expiry_is_reported_to_listeners_whatever_recorded_it(self, harness: Harness, recorder: str) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        acquire_one = AcquireRequest("stream", LANE, 1, WORKER, "token", policy=Policy(lease_ttl_us=LEASE_US))
        if recorder == "acquire":
            acked(harness, lease)
            harness.store.acquire([acquire_one])
        heard: list[Expiration] = []
        store = harness.store
        store.expiries.listen(heard.extend)
        harness.clock.advance(us=LEASE_US + 5)
        match recorder:
            case "expire":
                assert store.expire() == heard
            case "claim":
                assert len(store.claim(WORKER, [QUEUE], 1)) == 1
            case "late report":
                assert isinstance(store.ack([AckReport("job", lease.token)])[0], Lost)
            case _:
                store.acquire([replace(acquire_one, offset=2, token="other")])
        assert heard == [Expiration(heard[0].job_id, WORKER, 1, 5, JobState.READY)]
        assert heard[0].job_id == ("stream/A/1" if recorder == "acquire" else "job")

    @rule("L9")
    def test_extend_gives_a_full_lease_from_now(self, harness: Harness) -> None:
        """001: each heartbeat extends the lease; 004: no state change on the task."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=20)
        until = harness.clock.now() + LEASE_US
        assert extended(harness, lease) == until
        assert last_execution(harness).expires_at == until
        assert state_of(harness) is JobState.LEASED
        harness.clock.advance(us=LEASE_US - 1)
        assert expire(harness) == []
        assert extended(harness, lease) == harness.clock.now() + LEASE_US
        harness.clock.advance(us=LEASE_US)
        refused(extend(harness, lease), LossReason.EXPIRED)

    @rule("L9", "L8")
    def test_extend_never_shortens_a_lease(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        harness.clock.advance(s=-10)
        assert extended(harness, lease) == lease.expires_at
        assert last_execution(harness).expires_at == lease.expires_at

    @rule("L9")
    def test_extend_also_holds_an_execution_that_started_or_committed(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness)
        started(harness, lease)
        harness.clock.advance(s=1)
        assert extended(harness, lease) == harness.clock.now() + LEASE_US
        committed(harness, lease)
        harness.clock.advance(s=1)
        assert extended(harness, lease) == harness.clock.now() + LEASE_US
        assert last_execution(harness).status is ExecutionStatus.COMMITTED
