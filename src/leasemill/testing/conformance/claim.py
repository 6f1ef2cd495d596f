"""C: who gets which job, in which order, and never two at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from leasemill.kernel.commands import Claim, Lease
from leasemill.kernel.model import SECOND, JobState, Policy
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.states import job_in
from leasemill.testing.conformance.steps import (
    LANE,
    LEASE_US,
    OTHER,
    QUEUE,
    WORKER,
    acked,
    cancelled,
    claim,
    claim_ids,
    claim_nothing,
    claim_one,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    every_job,
    everything,
    expire,
    expired,
    job_of,
    last_execution,
    let_expire,
    nacked,
    new_token,
    only,
    pause,
    released,
    resume,
    spec,
    state_of,
)
from leasemill.testing.rules import rule


def request(limit: int = 10, request_id: str = "request") -> Claim:
    return Claim(WORKER, [QUEUE], limit, [new_token() for _ in range(limit)], request_id)


class Claiming:
    @rule("C1", "L1")
    def test_a_claimed_job_is_leased_to_its_claimant(self, harness: Harness) -> None:
        """001: Ready to InFlight by Claim."""
        enqueue_one(harness, payload=b"[1]", policy=Policy(lease_ttl_us=7 * SECOND))
        harness.clock.advance(s=1)
        lease = claim_one(harness)
        assert lease.job == job_of(harness).spec
        assert (lease.worker, lease.attempt, lease.retries, lease.expirations) == (WORKER, 1, 0, 0)
        assert lease.leased_at == harness.clock.now()
        assert lease.expires_at == harness.clock.now() + 7 * SECOND
        assert lease.created_at == harness.clock.now() - SECOND
        assert state_of(harness) is JobState.LEASED

    @rule("C1")
    @pytest.mark.parametrize(
        "state",
        [
            "retrying",
            "leased",
            "started",
            "committed",
            "succeeded",
            "failed",
            "cancelled",
            "cancelled in flight",
            "quarantined",
        ],
    )
    def test_only_ready_jobs_that_are_due_are_given(self, harness: Harness, state: str) -> None:
        """001: jobs are invisible to other workers while leased; successful jobs are never processed again."""
        job_in(harness, state)
        before = everything(harness)
        claim_nothing(harness)
        assert everything(harness) == before

    @rule("C1")
    def test_an_unknown_queue_gives_nothing_and_is_not_made(self, harness: Harness) -> None:
        claim_nothing(harness, "nowhere")
        assert harness.store.queues() == []

    @rule("C2")
    def test_jobs_are_given_in_the_order_they_were_enqueued(self, harness: Harness) -> None:
        """001: first in, first out within a queue."""
        enqueue_many(harness, "c", "a", "d", "b")
        assert [claim_one(harness).job.id for _ in range(4)] == ["c", "a", "d", "b"]

    @rule("C2")
    def test_a_higher_priority_goes_first(self, harness: Harness) -> None:
        for priority in (0, 5, 9, 1, 5):
            enqueue_one(harness, f"{priority}-{len(every_job(harness))}", priority=priority)
        assert claim_ids(harness, 2) == ["9-2", "5-1"]
        assert claim_ids(harness) == ["5-4", "1-3", "0-0"]

    @rule("C2")
    def test_of_one_priority_the_longest_due_goes_first(self, harness: Harness) -> None:
        enqueue_one(harness, "late", delay_us=3 * SECOND)
        enqueue_one(harness, "early", delay_us=1 * SECOND)
        enqueue_one(harness, "middle", delay_us=2 * SECOND)
        enqueue_one(harness, "also early", delay_us=1 * SECOND)
        enqueue_one(harness, "now")
        harness.clock.advance(s=2.5)
        enqueue_one(harness, "fresh")
        harness.clock.advance(s=5)
        assert claim_ids(harness) == ["now", "early", "also early", "middle", "fresh", "late"]

    @rule("C2")
    def test_priority_goes_before_time(self, harness: Harness) -> None:
        enqueue_one(harness, "old")
        harness.clock.advance(s=60)
        enqueue_one(harness, "urgent", priority=1)
        assert claim_ids(harness) == ["urgent", "old"]

    @rule("C3")
    def test_a_retried_job_comes_back_behind_those_due_before_it(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        nacked(harness, claim_one(harness), delay_us=2 * SECOND)
        harness.clock.advance(s=1)
        enqueue_one(harness, "c")
        harness.clock.advance(s=2)
        enqueue_one(harness, "d")
        assert claim_ids(harness) == ["b", "c", "a", "d"]

    @rule("C3")
    def test_an_expired_job_keeps_its_place(self, harness: Harness) -> None:
        enqueue_one(harness, "a")
        lease = claim_one(harness)
        harness.clock.advance(s=1)
        enqueue_many(harness, "b", "c")
        expired(harness, lease)
        assert claim_ids(harness) == ["a", "b", "c"]

    @rule("C3")
    def test_a_released_job_keeps_its_place(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c")
        first, second = claim(harness, 2)
        harness.clock.advance(s=1)
        released(harness, second)
        released(harness, first)
        assert claim_ids(harness) == ["a", "b", "c"]

    @rule("C3")
    def test_a_job_released_with_a_delay_waits_for_it(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        released(harness, claim_one(harness), delay_us=SECOND)
        assert job_of(harness, "a").available_at == harness.clock.now() + SECOND
        assert claim_ids(harness) == ["b"]
        harness.clock.advance(us=SECOND - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        assert claim_ids(harness) == ["a"]

    @rule("C4")
    def test_no_more_are_given_than_were_asked_for(self, harness: Harness) -> None:
        harness.store.enqueue([spec(f"job-{number}", priority=number % 3) for number in range(20)])
        assert [len(claim_ids(harness, limit)) for limit in (1, 7, 10, 10)] == [1, 7, 10, 2]
        claim_nothing(harness)

    @rule("C5")
    def test_a_claim_repeated_after_a_lost_reply_gives_the_same_leases(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b", "c")
        command = request(2)
        leases = harness.store.run(command)
        assert [lease.job.id for lease in leases] == ["a", "b"]
        before = everything(harness)
        harness.clock.advance(s=1)
        assert sorted(harness.store.run(command), key=by_id) == leases
        assert sorted(harness.store.claim(WORKER, [QUEUE], 2, request_id="request"), key=by_id) == leases
        assert everything(harness) == before
        assert claim_ids(harness) == ["c"]

    @rule("C5")
    def test_a_repeated_claim_gives_only_what_is_still_held(self, harness: Harness) -> None:
        enqueue_one(harness, "short", policy=Policy(lease_ttl_us=SECOND))
        enqueue_many(harness, "acked", "cancelled", "held", "other")
        command = request(4)
        _, to_ack, _, held = harness.store.run(command)
        acked(harness, to_ack)
        cancelled(harness, "cancelled")
        opened = StayingOpen(harness)
        opened.clock.advance(s=1)
        assert opened.store.run(command) == [held]
        expire(opened)
        assert claim_ids(opened) == ["short", "other"]

    @rule("C5", "I2")
    def test_a_claim_that_comes_again_after_its_lease_never_grants_its_token_again(self, harness: Harness) -> None:
        """A message that the network delivers twice must not make an old token good."""
        enqueue_one(harness)
        command = request(1)
        lease = only(harness.store.run(command))
        released(harness, lease)
        assert all(again.token != lease.token for again in harness.store.run(command))
        harness.clock.advance(us=LEASE_US)
        assert claim_one(harness, worker=OTHER).token != lease.token

    @rule("C5")
    def test_a_claim_repeated_while_the_first_is_under_way_gives_the_same_leases(self, harness: Harness) -> None:
        """A caller that waited too long for its answer does not wait until the first call has ended."""
        opened = StayingOpen(harness)

        async def at_once(command: Claim) -> list[list[Lease]]:
            claims = await asyncio.gather(*(opened.store.arun(command) for _ in range(3)))
            return [sorted(leases, key=by_id) for leases in claims]

        async def rounds() -> None:
            for number in range(40):
                enqueue_many(opened, *(f"job-{number}-{one}" for one in ("abcdef" if number % 2 else "ab")))
                first, *others = await at_once(request(2, f"request-{number}"))
                assert len(first) == 2
                assert others == [first, first]

        asyncio.run(rounds())

    @rule("C5")
    def test_different_requests_get_different_jobs(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        first, second = request(1, "one"), request(1, "two")
        assert [lease.job.id for lease in harness.store.run(first)] == ["a"]
        assert [lease.job.id for lease in harness.store.run(second)] == ["b"]
        assert [lease.job.id for lease in harness.store.run(first)] == ["a"]

    @rule("C6")
    def test_queues_are_served_in_the_order_they_are_named(self, harness: Harness) -> None:
        enqueue_one(harness, "a", queue="one", priority=9)
        enqueue_one(harness, "b", queue="two")
        enqueue_one(harness, "c", queue="three", priority=5)
        enqueue_one(harness, "d", queue="two", priority=1)
        assert claim_ids(harness, 1, "two", "one") == ["d"]
        assert claim_ids(harness, 100, "three", "two", "one") == ["c", "b", "a"]

    @rule("C6", "C1")
    def test_only_the_named_queues_are_served(self, harness: Harness) -> None:
        enqueue_one(harness, "a", queue="one")
        enqueue_one(harness, "b", queue="two")
        assert claim_ids(harness, 100, "two") == ["b"]
        assert state_of(harness, "a") is JobState.READY

    @rule("C6", "C7")
    def test_a_queue_named_twice_gives_its_jobs_once(self, harness: Harness) -> None:
        enqueue_many(harness, "a", "b")
        assert claim_ids(harness, 100, QUEUE, "other", QUEUE) == ["a", "b"]
        assert job_of(harness, "a").attempt == 1

    @rule("C6", "O3")
    def test_a_paused_queue_gives_nothing(self, harness: Harness) -> None:
        enqueue_one(harness, "a")
        enqueue_one(harness, "b", queue="other")
        pause(harness)
        claim_nothing(harness)
        assert claim_ids(harness, 100, QUEUE, "other") == ["b"]
        resume(harness)
        assert claim_ids(harness) == ["a"]

    @rule("C7")
    def test_a_held_job_is_nobody_elses(self, harness: Harness) -> None:
        """001: only one worker can hold a lease on a job at any time."""
        lease = enqueue_and_claim(harness)
        harness.clock.advance(us=LEASE_US - 1)
        claim_nothing(harness)
        assert last_execution(harness).token == lease.token

    @rule("C7", "L3")
    def test_an_expired_job_goes_to_the_next_claimant_without_a_reaper(self, harness: Harness) -> None:
        """001: InFlight to Ready by lease timeout; the job becomes reclaimable with the same id."""
        lease = enqueue_and_claim(harness)
        let_expire(harness, lease)
        again = claim_one(harness, worker=OTHER)
        assert (again.job.id, again.attempt, again.worker) == ("job", 2, OTHER)
        assert again.fence > lease.fence

    @rule("C7")
    def test_claimants_at_the_same_time_get_different_jobs(self, harness: Harness) -> None:
        store = harness.store
        store.enqueue([spec(f"job-{number}") for number in range(60)])
        store.enqueue([spec(f"lane-{number}", lane=LANE) for number in range(5)])
        given: list[str] = []
        errors: list[BaseException] = []
        begin = threading.Barrier(4)

        def work(worker: str) -> None:
            try:
                begin.wait(10)
                for _ in range(8):
                    given.extend(lease.job.id for lease in store.claim(worker, [QUEUE], 3))
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=work, args=(f"worker-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert len(given) == len(set(given)) == 61
        assert [job_id for job_id in given if job_id.startswith("lane")] == ["lane-0"]

    @rule("C1")
    def test_due_in_is_when_the_next_job_is_due(self, harness: Harness) -> None:
        def due_in(*queues: str) -> int | None:
            return harness.store.due_in(queues or [QUEUE])

        assert due_in() is None
        enqueue_one(harness, "later", delay_us=5 * SECOND)
        assert due_in() == 5 * SECOND
        enqueue_one(harness, "sooner", delay_us=2 * SECOND, priority=3)
        enqueue_one(harness, "elsewhere", queue="other", delay_us=SECOND)
        assert due_in() == 2 * SECOND
        assert due_in(QUEUE, "other", "unknown") == SECOND
        harness.clock.advance(s=3)
        assert due_in() == 0
        pause(harness)
        assert due_in() is None
        resume(harness)
        assert claim_ids(harness) == ["sooner"]
        assert due_in() == 2 * SECOND
        cancelled(harness, "later")
        assert due_in() is None

    @rule("N3")
    def test_due_in_counts_the_heads_of_lanes_alone(self, harness: Harness) -> None:
        enqueue_one(harness, "head", lane=LANE, delay_us=5 * SECOND)
        enqueue_one(harness, "behind", lane=LANE)
        assert harness.store.due_in([QUEUE]) == 5 * SECOND


def by_id(lease: Lease) -> str:
    return lease.job.id
