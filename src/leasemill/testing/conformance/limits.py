"""T: limits. Who holds their places, who waits, and how numbers change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from leasemill.kernel.commands import Enqueued, Lease, LimitView
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, JobState, LimitTerms, LimitUse, LossReason, Policy, Rules
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    LANE,
    OPERATOR,
    OTHER,
    QUEUE,
    WHY,
    WORKER,
    ack,
    acked,
    cancelled,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    died,
    enqueue_many,
    enqueue_one,
    expire,
    expired,
    keep,
    let_expire,
    nack,
    nacked,
    pause,
    redrive,
    refused,
    release,
    released,
    resume,
    spec,
    started,
)
from leasemill.testing.rules import rule

STRIPE = "stripe"


def under(*names: str) -> Rules:
    """Rules that name these limits: `name`, or `name/key`."""
    return Rules(limits=tuple(LimitUse(*name.split("/", 1)) for name in names))


def set_limit(harness: Harness, name: str = STRIPE, **terms: int) -> None:
    harness.store.set_limit(name, LimitTerms(**terms), by=OPERATOR, reason=WHY)


def clear_limit(harness: Harness, name: str = STRIPE) -> None:
    harness.store.clear_limit(name, by=OPERATOR, reason=WHY)


def declare(harness: Harness, name: str = STRIPE, **terms: int) -> None:
    harness.store.declare_limits({name: LimitTerms(**terms)}, by=WORKER)


def limit_of(harness: Harness, name: str = STRIPE, key: str | None = None) -> LimitView:
    view = harness.store.limit(name, key=key)
    assert view is not None, f"there is no limit {name}"
    return view


def counts(harness: Harness, name: str = STRIPE) -> tuple[int, int]:
    """Return how many places are held, and how many jobs wait."""
    view = limit_of(harness, name)
    return view.held, view.waiting


def ids(leases: Sequence[Lease]) -> list[str]:
    return [lease.job.id for lease in leases]


ENDS: dict[str, Callable[[Harness, Lease], object]] = {
    "ack": acked,
    "a retry": nacked,
    "a failure for good": lambda harness, lease: nacked(harness, lease, is_permanent=True),
    "release": released,
    "release with a delay": lambda harness, lease: released(harness, lease, SECOND),
    "cancel": lambda harness, lease: cancelled(harness, lease.job.id),
    "expiry": expired,
    "death": died,
    "commit and ack": lambda harness, lease: (committed(harness, lease), acked(harness, lease)),
    "commit and expiry": lambda harness, lease: (committed(harness, lease), expired(harness, lease)),
    "commit and death": lambda harness, lease: (committed(harness, lease), died(harness, lease)),
}


class Limiting:
    @rule("T1", "T2")
    def test_no_more_leases_than_places(self, harness: Harness) -> None:
        set_limit(harness, places=2)
        enqueue_many(harness, "a", "b", "c", "d", rules=under(STRIPE))
        assert claim_ids(harness) == ["a", "b"]
        claim_nothing(harness)
        assert counts(harness) == (2, 2)
        assert set(limit_of(harness).holders) == {"a", "b"}

    @rule("T1")
    def test_a_limit_is_shared_by_kinds_and_queues(self, harness: Harness) -> None:
        set_limit(harness, places=2)
        enqueue_one(harness, "a", rules=under(STRIPE))
        enqueue_one(harness, "b", queue="other", kind="kind-2", rules=under(STRIPE))
        enqueue_one(harness, "c", queue="other", rules=under(STRIPE))
        assert ids(claim(harness, 10, queues=[QUEUE, "other"])) == ["a", "b"]
        claim_nothing(harness, "other", QUEUE)

    @rule("T1")
    def test_each_key_has_places_of_its_own(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        for job_id, key in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z")):
            enqueue_one(harness, job_id, rules=under(f"{STRIPE}/{key}"))
        assert claim_ids(harness) == ["a", "c", "e"]
        assert [(one.key, one.held, one.waiting) for one in limit_of(harness).keys] == [
            ("x", 1, 1),
            ("y", 1, 1),
            ("z", 1, 0),
        ]
        assert [(one.key, one.holders) for one in limit_of(harness, key="y").keys] == [("y", ("c",))]
        assert counts(harness) == (3, 2)

    @rule("T3")
    @pytest.mark.parametrize("end", ENDS)
    def test_the_end_of_a_lease_gives_its_place_back_once(self, harness: Harness, end: str) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, "first", "second", "third", rules=under(STRIPE))
        lease = claim_one(harness)
        ENDS[end](harness, lease)
        held = claim(harness, 10)
        assert len(held) == 1
        assert counts(harness)[0] == 1
        for report in (ack, nack, release):
            report(harness, lease)
        claim_nothing(harness)
        assert counts(harness)[0] == 1

    @rule("T3", "L3")
    def test_a_holder_that_nobody_proved_dead_costs_one_lease_and_its_late_report_gives_back_nothing(
        self, harness: Harness
    ) -> None:
        set_limit(harness, places=2)
        enqueue_many(harness, "a", "b", "c", rules=under(STRIPE))
        first, second = claim(harness, 2)
        let_expire(harness, first)
        assert claim_ids(harness) == ["a", "b"]
        refused(ack(harness, first), LossReason.SUPERSEDED)
        refused(release(harness, second), LossReason.SUPERSEDED)
        claim_nothing(harness)
        assert counts(harness) == (2, 1)

    @rule("T3", "N11")
    def test_a_failure_that_keeps_its_lease_keeps_its_place(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, "a", "b", rules=under(STRIPE))
        lease = claim_one(harness)
        keep(harness, lease, "report")
        claim_nothing(harness)
        acked(harness, lease)
        assert claim_ids(harness) == ["b"]

    @rule("T4")
    def test_a_job_that_waits_for_a_place_holds_up_no_other(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, *(f"hot-{number}" for number in range(30)), rules=under(f"{STRIPE}/hot"), priority=9)
        enqueue_one(harness, "cold", rules=under(f"{STRIPE}/cold"))
        enqueue_one(harness, "plain")
        assert claim_ids(harness) == ["hot-0", "cold", "plain"]

    @rule("T4", "C2")
    def test_those_that_wait_for_the_same_come_by_priority_then_time_then_sequence(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_one(harness, "holder", rules=under(STRIPE))
        lease = claim_one(harness)
        enqueue_one(harness, "later", rules=under(STRIPE), delay_us=2 * SECOND)
        enqueue_one(harness, "first", rules=under(STRIPE))
        enqueue_one(harness, "second", rules=under(STRIPE))
        enqueue_one(harness, "urgent", rules=under(STRIPE), priority=5)
        harness.clock.advance(s=3)
        order: list[str] = []
        while True:
            acked(harness, lease)
            leases = claim(harness, 10)
            if not leases:
                break
            (lease,) = leases
            order.append(lease.job.id)
        assert order == ["urgent", "first", "second", "later"]

    @rule("T4", "C2")
    def test_jobs_under_limits_and_others_come_in_one_order(self, harness: Harness) -> None:
        set_limit(harness, places=10)
        for number in range(6):
            rules = under(f"{STRIPE}/{number}") if number % 2 else None
            enqueue_one(harness, f"job-{number}", rules=rules)
            harness.clock.advance(us=10)
        assert claim_ids(harness) == [f"job-{number}" for number in range(6)]

    @rule("T4")
    def test_a_job_that_is_not_due_holds_no_place(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_one(harness, "later", rules=under(STRIPE), delay_us=SECOND)
        enqueue_one(harness, "now", rules=under(STRIPE))
        lease = claim_one(harness)
        assert lease.job.id == "now"
        nacked(harness, lease, delay_us=60 * SECOND)
        harness.clock.advance(s=1)
        assert claim_ids(harness) == ["later"]

    @rule("T4", "F1")
    def test_a_storm_of_retries_of_one_key_starves_no_other(self, harness: Harness) -> None:
        """Jobs of a key that fail at once and are due again at once take that key's places alone."""
        set_limit(harness, places=2)
        policy = Policy(max_retries=1_000)
        enqueue_many(harness, *(f"storm-{number}" for number in range(30)), rules=under(f"{STRIPE}/x"), policy=policy)
        enqueue_many(harness, *(f"calm-{number}" for number in range(6)), rules=under(f"{STRIPE}/y"))
        calm: list[str] = []
        for _ in range(3):
            leases = claim(harness, 10)
            assert len(leases) == 4
            for lease in leases:
                if lease.job.id.startswith("storm"):
                    nacked(harness, lease, delay_us=0)
                else:
                    calm.append(lease.job.id)
                    acked(harness, lease)
        assert calm == [f"calm-{number}" for number in range(6)]

    @rule("T5")
    def test_many_that_wait_for_a_key_are_passed(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        jobs = [spec(f"hot-{number}", rules=under(f"{STRIPE}/hot")) for number in range(2_000)]
        assert all(isinstance(outcome, Enqueued) for outcome in harness.store.enqueue(jobs))
        enqueue_one(harness, "cold", rules=under(f"{STRIPE}/cold"))
        assert claim_ids(harness, 2) == ["hot-0", "cold"]
        claim_nothing(harness)

    @rule("T2")
    def test_places_of_several_limits_are_taken_together_or_not_at_all(self, harness: Harness) -> None:
        set_limit(harness, "a", places=1)
        set_limit(harness, "b", places=1)
        enqueue_one(harness, "needs-a", rules=under("a"))
        enqueue_one(harness, "needs-both", rules=under("b", "a"))
        enqueue_one(harness, "needs-b", rules=under("b"))
        first, second = claim(harness, 10)
        assert ids([first, second]) == ["needs-a", "needs-b"]
        acked(harness, first)
        claim_nothing(harness)
        assert counts(harness, "a")[0] == 0
        acked(harness, second)
        assert claim_ids(harness) == ["needs-both"]

    @rule("T2")
    def test_two_limits_in_opposite_orders_go_on(self, harness: Harness) -> None:
        set_limit(harness, "a", places=1)
        set_limit(harness, "b", places=1)
        for number in range(6):
            enqueue_one(harness, f"job-{number}", rules=under("a", "b") if number % 2 else under("b", "a"))
        for number in range(6):
            (lease,) = claim(harness, 10, worker=WORKER if number % 2 else OTHER)
            assert lease.job.id == f"job-{number}"
            acked(harness, lease)

    @rule("T7")
    def test_an_extended_lease_keeps_its_place_and_a_started_one_that_expires_gives_it_back(
        self, harness: Harness
    ) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, "a", "b", rules=under(STRIPE), policy=Policy(max_expirations=1))
        lease = claim_one(harness)
        started(harness, lease)
        assert [one.state for one in [expired(harness, lease)]] == [JobState.DEAD]
        assert claim_ids(harness) == ["b"]

    @rule("T8")
    def test_a_claim_takes_jobs_under_limits_for_its_slots_alone(self, harness: Harness) -> None:
        set_limit(harness, places=10)
        enqueue_many(harness, "a", "b", "c", rules=under(STRIPE), priority=1)
        enqueue_many(harness, "x", "y")
        assert ids(harness.store.claim(WORKER, [QUEUE], 10, slots=2)) == ["a", "b", "x", "y"]
        assert harness.store.claim(WORKER, [QUEUE], 10, slots=0) == []
        set_limit(harness, QUEUE_LIMIT + "other", places=5)
        enqueue_many(harness, "p", "q", queue="other")
        assert ids(harness.store.claim(WORKER, ["other"], 10, slots=1)) == ["p"]

    @rule("T9", "N1", "N2")
    def test_a_job_of_a_lane_needs_its_turn_and_a_place(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_one(harness, "holder", rules=under(STRIPE))
        enqueue_one(harness, "head", lane=LANE, rules=under(STRIPE))
        enqueue_one(harness, "behind", lane=LANE)
        holder = claim_one(harness)
        assert holder.job.id == "holder"
        claim_nothing(harness)
        acked(harness, holder)
        head = claim_one(harness)
        assert head.job.id == "head"
        claim_nothing(harness)
        acked(harness, head)
        assert claim_ids(harness) == ["behind"]

    @rule("T2", "O3")
    def test_a_paused_queue_grants_nothing_and_its_jobs_wait_at_their_place(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_one(harness, "paused", rules=under(STRIPE))
        enqueue_one(harness, "other", queue="other", rules=under(STRIPE))
        pause(harness)
        (other,) = claim(harness, 10, queues=[QUEUE, "other"])
        assert other.job.id == "other"
        resume(harness)
        claim_nothing(harness)
        acked(harness, other)
        assert claim_ids(harness) == ["paused"]

    @rule("T3", "O2")
    def test_a_redriven_job_waits_for_a_place_again(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, "a", "b", rules=under(STRIPE))
        nacked(harness, claim_one(harness), is_permanent=True)
        held = claim_one(harness)
        redrive(harness, "a")
        claim_nothing(harness)
        acked(harness, held)
        assert claim_ids(harness) == ["a"]

    @rule("T3", "O1")
    def test_a_cancelled_job_that_waited_leaves_the_others_waiting(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, "a", "b", "c", rules=under(STRIPE))
        held = claim_one(harness)
        cancelled(harness, "b")
        claim_nothing(harness)
        acked(harness, held)
        assert claim_ids(harness) == ["c"]
        assert counts(harness) == (1, 0)

    @rule("T3")
    def test_expire_gives_places_back(self, harness: Harness) -> None:
        set_limit(harness, places=2)
        enqueue_many(harness, "a", "b", "c", rules=under(STRIPE))
        leases = claim(harness, 2)
        let_expire(harness, leases[0])
        expire(harness)
        assert counts(harness) == (0, 3)
        assert claim_ids(harness) == ["a", "b"]

    @rule("T4")
    def test_who_waits_for_a_place_is_due_when_it_is_free(self, harness: Harness) -> None:
        set_limit(harness, places=1)
        enqueue_many(harness, "a", "b", rules=under(STRIPE))
        lease = claim_one(harness)
        assert harness.store.due_in([QUEUE]) is None
        acked(harness, lease)
        assert harness.store.due_in([QUEUE]) == 0

    @rule("T1")
    def test_a_repeated_claim_takes_no_second_place(self, harness: Harness) -> None:
        set_limit(harness, places=2)
        enqueue_many(harness, "a", "b", "c", rules=under(STRIPE))
        first = harness.store.claim(WORKER, [QUEUE], 1, request_id="request")
        again = harness.store.claim(WORKER, [QUEUE], 1, request_id="request")
        assert [lease.token for lease in again] == [lease.token for lease in first]
        assert counts(harness) == (1, 2)
