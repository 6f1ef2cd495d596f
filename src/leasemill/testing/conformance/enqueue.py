"""E: a job comes in once, with what its caller gave, and stays."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import Conflict, Duplicate, Enqueue, Enqueued, JobFilter
from leasemill.kernel.model import SECOND, JobState, OnFailure, Policy
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.states import STATES, job_in
from leasemill.testing.conformance.steps import (
    OPERATOR,
    WHY,
    acked,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    enqueue,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    every_job,
    everything,
    failed_for_good,
    job_of,
    purge,
    spec,
    started,
    state_of,
)
from leasemill.testing.rules import rule

GIVEN: dict[str, Any] = {
    "queue": "work",
    "kind": "kind",
    "payload": b'{"a": 1}',
    "lane": "lane",
    "priority": 5,
    "delay_us": 1,
    "policy": Policy(max_retries=1),
}

OTHERWISE: dict[str, dict[str, Any]] = {
    "queue": {"queue": "elsewhere"},
    "kind": {"kind": "other"},
    "payload": {"payload": b'{"a": 2}'},
    "payload bytes": {"payload": b'{"a":1}'},
    "lane": {"lane": "other"},
    "no lane": {"lane": None},
    "priority": {"priority": 6},
    "delay": {"delay_us": 2},
    "no delay": {"delay_us": 0},
    "run_at": {"delay_us": 0, "run_at": 2_000_000_000 * SECOND},
    "policy": {"policy": Policy(max_retries=2)},
    "no policy": {"policy": None},
    "policy's last field": {"policy": Policy(max_retries=1, on_failure=OnFailure.BLOCK)},
}


class Enqueuing:
    @rule("E1")
    def test_what_was_answered_is_there_after_the_store_was_opened_again(self, harness: Harness) -> None:
        """001: successfully enqueued jobs survive process restarts; 004: replay is truth."""
        enqueue_many(harness, "a", "b", "c", "d")
        harness.reopen()
        lease = claim_one(harness)
        harness.reopen()
        started(harness, lease)
        harness.reopen()
        committed(harness, lease, result=b"1")
        harness.reopen()
        acked(harness, lease)
        harness.reopen()
        failed_for_good(harness, claim_one(harness))
        before = everything(harness)
        harness.reopen()
        assert everything(harness) == before
        states = {job.spec.id: job.state for job in every_job(harness)}
        ready = JobState.READY
        assert states == {"a": JobState.SUCCEEDED, "b": JobState.FAILED, "c": ready, "d": ready}
        assert claim_ids(harness) == ["c", "d"]

    @rule("E2", "E5")
    @pytest.mark.parametrize("state", STATES)
    def test_a_known_id_with_the_same_content_changes_nothing(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        before = everything(harness)
        harness.clock.advance(s=1)
        assert enqueue(harness, job_of(harness).spec) == Duplicate("job")
        assert everything(harness) == before

    @rule("E2", "E5")
    def test_the_same_command_twice_enqueues_once(self, harness: Harness) -> None:
        command = Enqueue([spec("a"), spec("b")])
        assert harness.store.run(command) == [Enqueued("a"), Enqueued("b")]
        assert harness.store.run(command) == [Duplicate("a"), Duplicate("b")]
        assert claim_ids(harness) == ["a", "b"]

    @rule("E3")
    def test_a_job_is_due_at_once_unless_it_says_otherwise(self, harness: Harness) -> None:
        """001: the postcondition of enqueue is that the job is claimable."""
        enqueue_one(harness)
        assert job_of(harness).available_at == harness.clock.now()
        assert claim_ids(harness) == ["job"]

    @rule("E3", "C1")
    def test_a_delayed_job_is_due_after_its_delay(self, harness: Harness) -> None:
        enqueue_one(harness, delay_us=5 * SECOND)
        assert job_of(harness).available_at == harness.clock.now() + 5 * SECOND
        harness.clock.advance(us=5 * SECOND - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        assert claim_ids(harness) == ["job"]

    @rule("E3", "C1")
    def test_a_job_for_a_time_is_due_at_that_time(self, harness: Harness) -> None:
        run_at = harness.clock.now() + 5 * SECOND
        enqueue_one(harness, run_at=run_at)
        assert job_of(harness).available_at == run_at
        harness.clock.advance(us=5 * SECOND - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        assert claim_ids(harness) == ["job"]

    @rule("E3", "C2")
    def test_a_job_for_a_time_that_is_past_is_due_now_and_overtakes_nobody(self, harness: Harness) -> None:
        enqueue_one(harness, "first")
        enqueue_one(harness, "second", run_at=harness.clock.now() - 100 * SECOND)
        assert job_of(harness, "second").available_at == harness.clock.now()
        assert claim_ids(harness) == ["first", "second"]

    @rule("E4")
    @pytest.mark.parametrize("changed", OTHERWISE)
    def test_a_known_id_with_other_content_is_refused(self, harness: Harness, changed: str) -> None:
        enqueue_one(harness, **GIVEN)
        before = everything(harness)
        other = spec(**(GIVEN | OTHERWISE[changed]))
        assert enqueue(harness, other) == Conflict("job")
        assert everything(harness) == before

    @rule("E4")
    @pytest.mark.parametrize("state", STATES)
    def test_other_content_is_refused_whatever_became_of_the_job(self, harness: Harness, state: str) -> None:
        job_in(harness, state)
        before = everything(harness)
        assert enqueue(harness, spec(payload=b"[1]")) == Conflict("job")
        assert everything(harness) == before

    @rule("E2", "E4")
    def test_headers_come_back_with_the_job_and_are_not_its_content(self, harness: Harness) -> None:
        first = {"traceparent": "00-1", "tenant": "a"}
        enqueue_one(harness, headers=first)
        assert enqueue(harness, spec(headers={"traceparent": "00-2"})) == Duplicate("job")
        assert enqueue(harness, spec()) == Duplicate("job")
        assert enqueue(harness, spec(headers=first, payload=b"[1]")) == Conflict("job")
        harness.reopen()
        assert job_of(harness).spec.headers == first
        assert claim_one(harness).job.headers == first

    @rule("E4")
    @pytest.mark.parametrize(
        "headers", [{"a b": "x"}, {"": "x"}, {"a": "\0"}, {"a": "x" * 5_000}, {f"h{n}": "" for n in range(33)}]
    )
    def test_headers_out_of_bounds_are_refused(self, harness: Harness, headers: dict[str, str]) -> None:
        with pytest.raises(Invalid, match="header"):
            enqueue(harness, spec(headers=headers))
        assert every_job(harness) == []

    @rule("E5", "O5")
    def test_a_purged_id_is_free_again(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness))
        purge(harness, "job")
        assert enqueue(harness, spec(payload=b"[1]")) == Enqueued("job")
        assert claim_one(harness).attempt == 1

    @rule("E5", "O7")
    def test_a_pruned_id_is_free_again(self, harness: Harness) -> None:
        acked(harness, enqueue_and_claim(harness))
        assert harness.store.prune(harness.clock.now() + 1, keep=100) == 1
        assert enqueue(harness, spec()) == Enqueued("job")
        assert state_of(harness) is JobState.READY

    @rule("E6")
    def test_a_batch_answers_for_each_item_and_an_item_sees_those_before_it(self, harness: Harness) -> None:
        enqueue_one(harness, "known")
        batch = [spec("a"), spec("known"), spec("a"), spec("a", payload=b"[1]"), spec("b"), spec("known", priority=1)]
        assert harness.store.enqueue(batch) == [
            Enqueued("a"),
            Duplicate("known"),
            Duplicate("a"),
            Conflict("a"),
            Enqueued("b"),
            Conflict("known"),
        ]
        assert claim_ids(harness) == ["known", "a", "b"]
        assert job_of(harness, "a").spec.payload == b"{}"

    @rule("E6")
    def test_one_object_twice_in_a_batch_is_a_job_and_its_duplicate(self, harness: Harness) -> None:
        job = spec("a")
        assert harness.store.enqueue([job, job]) == [Enqueued("a"), Duplicate("a")]

    @rule("E6")
    def test_an_empty_batch_answers_with_nothing(self, harness: Harness) -> None:
        before = everything(harness)
        assert harness.store.enqueue([]) == []
        assert everything(harness) == before

    @rule("E6", "C2")
    def test_a_batch_is_enqueued_in_its_order(self, harness: Harness) -> None:
        ids = [f"job-{number}" for number in (7, 3, 9, 1, 8, 2)]
        harness.store.enqueue([spec(job_id) for job_id in ids])
        assert [job.spec.id for job in every_job(harness)] == ids
        assert claim_ids(harness) == ids

    @rule("E5")
    def test_an_id_is_one_job_in_the_whole_store(self, harness: Harness) -> None:
        enqueue_one(harness)
        assert enqueue(harness, spec(queue="elsewhere")) == Conflict("job")
        claim_nothing(harness, "elsewhere")
        assert harness.store.purge(JobFilter(), by=OPERATOR, reason=WHY).job_ids == ()
