"""U8 to U10: debounced jobs are replaced until they are claimed; throttled ones keep their key for a time."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import Conflict, Duplicate, Enqueued, Merged
from leasemill.kernel.model import SECOND, JobSpec, JobState, Rules, UniqueKey, UniqueUntil
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    acked,
    cancelled,
    claim_ids,
    claim_nothing,
    claim_one,
    committed,
    enqueue,
    enqueue_and_claim,
    every_job,
    failed_for_good,
    job_of,
    redrive,
    released,
    spec,
    state_of,
)
from leasemill.testing.conformance.unique_steps import enqueued, follow_up, until_started
from leasemill.testing.rules import rule

WAIT_US = 5 * SECOND
AT_MOST_US = 60 * SECOND
PER_US = 3_600 * SECOND


def debounced(job_id: str, version: int = 1, key: str = "key", **fields: Any) -> JobSpec:
    unique = UniqueKey(key, UniqueUntil.STARTED, at_most_us=fields.pop("at_most_us", AT_MOST_US))
    given = {"delay_us": WAIT_US, "payload": b'{"version": %d}' % version, **fields}
    return spec(job_id, rules=Rules(unique), **given)


def throttled(job_id: str, version: int = 1, *, trailing: bool = False, **fields: Any) -> JobSpec:
    unique = UniqueKey("key", UniqueUntil.STARTED, keep_us=PER_US, is_trailing=trailing)
    return spec(job_id, rules=Rules(unique), payload=b'{"version": %d}' % version, **fields)


def trailing(job_id: str, version: int = 1, **fields: Any) -> JobSpec:
    return throttled(job_id, version, trailing=True, **fields)


def replaced(harness: Harness, job: JobSpec, holder: str) -> None:
    assert enqueue(harness, job) == Merged(holder, is_replaced=True)
    assert job_of(harness, holder).spec.payload == job.payload


class Debouncing:
    # U8: replaced until it is claimed

    @rule("U8")
    def test_a_debounced_job_runs_once_with_the_latest_arguments_after_the_last_call(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        for version in (2, 3):
            harness.clock.advance(us=WAIT_US - 1)
            replaced(harness, debounced(f"call-{version}", version), "first")
        harness.clock.advance(us=WAIT_US - 1)
        claim_nothing(harness)
        harness.clock.advance(us=1)
        lease = claim_one(harness)
        assert (lease.job.id, lease.job.payload) == ("first", b'{"version": 3}')
        acked(harness, lease)
        claim_nothing(harness)
        assert len(every_job(harness)) == 1

    @rule("U8")
    def test_an_endless_stream_of_calls_runs_every_at_most(self, harness: Harness) -> None:
        runs: list[int] = []
        began = harness.clock.now()
        for number in range(130):
            enqueue(harness, debounced(f"call-{number}", number))
            harness.clock.advance(us=SECOND)
            for lease in harness.store.claim("worker", ["work"], 10):
                runs.append((harness.clock.now() - began) // SECOND)
                acked(harness, lease)
        assert runs == [60, 120]

    @rule("U8")
    def test_the_bound_counts_from_the_first_call_also_after_the_store_was_opened_again(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        for number in range(14):
            harness.clock.advance(us=WAIT_US - SECOND)
            replaced(harness, debounced(f"call-{number}", number), "first")
            harness.reopen()
        job = job_of(harness, "first")
        assert job.available_at == job.created_at + 14 * (WAIT_US - SECOND) + SECOND * 4 == job.created_at + AT_MOST_US
        assert job.replaced == 14

    @rule("U8")
    def test_a_job_that_waits_for_a_worker_is_put_off_within_its_bound(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        harness.clock.advance(us=10 * SECOND)
        replaced(harness, debounced("second", 2), "first")
        claim_nothing(harness)
        harness.clock.advance(us=100 * SECOND)
        replaced(harness, debounced("third", 3), "first")
        assert claim_one(harness).job.payload == b'{"version": 3}'

    @rule("U8", "U2")
    @pytest.mark.parametrize("is_acked", [False, True])
    def test_a_call_after_the_claim_makes_a_new_job(self, harness: Harness, is_acked: bool) -> None:
        """Also when the job was claimed ahead and its handler has not begun."""
        enqueued(harness, debounced("first"))
        harness.clock.advance(us=WAIT_US)
        lease = claim_one(harness)
        if is_acked:
            acked(harness, lease)
        enqueued(harness, debounced("second", 2))
        replaced(harness, debounced("third", 3), "second")
        assert job_of(harness, "first").spec.payload == b'{"version": 1}'
        harness.clock.advance(us=WAIT_US)
        assert claim_one(harness).job.payload == b'{"version": 3}'

    @rule("U8", "E2", "E4")
    def test_a_repeated_call_is_a_duplicate_although_its_arguments_were_replaced(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        assert enqueue(harness, debounced("first")) == Duplicate("first")
        assert enqueue(harness, debounced("first", 2)) == Conflict("first")
        replaced(harness, debounced("second", 2), "first")
        assert enqueue(harness, debounced("first")) == Duplicate("first")
        assert enqueue(harness, debounced("first", priority=1)) == Conflict("first")
        assert job_of(harness, "first").spec.payload == b'{"version": 2}'

    @rule("U8")
    def test_headers_are_those_of_the_latest_call(self, harness: Harness) -> None:
        enqueued(harness, debounced("first", headers={"trace": "1"}))
        replaced(harness, debounced("second", headers={"trace": "2"}), "first")
        assert job_of(harness, "first").spec.headers == {"trace": "2"}
        replaced(harness, debounced("third"), "first")
        assert job_of(harness, "first").spec.headers is None

    @rule("U8")
    def test_the_rest_of_the_job_stays_as_it_was(self, harness: Harness) -> None:
        enqueued(harness, debounced("first", priority=3))
        before = job_of(harness, "first")
        harness.clock.advance(us=SECOND)
        replaced(harness, debounced("second", 2, priority=9), "first")
        after = job_of(harness, "first")
        assert (after.spec.priority, after.seq) == (3, before.seq)
        assert (after.created_at, after.updated_at) == (before.created_at, before.created_at + SECOND)
        assert after.available_at == before.available_at + SECOND

    @rule("U8")
    def test_arguments_of_another_kind_replace_nothing(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        assert enqueue(harness, debounced("second", 2, kind="other")) == Merged("first")
        assert enqueue(harness, until_started("third")) == Merged("first")
        assert job_of(harness, "first").replaced == 0

    @rule("U8", "U5")
    def test_in_a_batch_and_among_follow_ups_the_latest_arguments_win(self, harness: Harness) -> None:
        calls = [debounced(f"call-{version}", version) for version in range(3)]
        merged = Merged("call-0", is_replaced=True)
        assert harness.store.enqueue(calls) == [Enqueued("call-0"), merged, merged]
        assert job_of(harness, "call-0").spec.payload == b'{"version": 2}'
        lease = enqueue_and_claim(harness, "parent")
        followups = [follow_up(debounced("", version)) for version in (7, 8)]
        followups += [follow_up(debounced("", version, "other")) for version in (1, 2)]
        ids = committed(harness, lease, followups=followups).followup_ids
        assert ids == ("call-0", "call-0", "parent/2", "parent/2")
        assert job_of(harness, "call-0").spec.payload == b'{"version": 8}'
        assert job_of(harness, "parent/2").spec.payload == b'{"version": 2}'
        assert (job_of(harness, "call-0").replaced, job_of(harness, "parent/2").replaced) == (4, 1)

    # U9: never what was claimed

    @rule("U9")
    def test_a_job_that_was_claimed_or_redriven_is_never_replaced(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        harness.clock.advance(us=WAIT_US)
        failed_for_good(harness, claim_one(harness))
        redrive(harness, "first")
        enqueued(harness, debounced("second", 2))
        cancelled(harness, "second")
        redrive(harness, "second", include_cancelled=True)
        enqueued(harness, debounced("third", 3))
        assert [job.spec.payload for job in every_job(harness)] == [b'{"version": %d}' % n for n in (1, 2, 3)]

    @rule("U9", "U10")
    def test_a_trailing_job_that_was_given_back_is_not_replaced_though_its_key_is_kept(self, harness: Harness) -> None:
        enqueued(harness, trailing("first"))
        acked(harness, claim_one(harness))
        enqueued(harness, trailing("second", 2))
        harness.clock.advance(us=PER_US)
        released(harness, claim_one(harness))
        enqueued(harness, trailing("third", 3))
        assert job_of(harness, "second").spec.payload == b'{"version": 2}'
        assert claim_ids(harness) == ["second"]

    @rule("U9")
    def test_a_replaced_job_can_be_cancelled_and_redriven(self, harness: Harness) -> None:
        enqueued(harness, debounced("first"))
        harness.clock.advance(us=SECOND)
        replaced(harness, debounced("second", 2), "first")
        cancelled(harness, "first")
        assert state_of(harness, "first") is JobState.CANCELLED
        claim_nothing(harness)
        redrive(harness, "first", include_cancelled=True)
        assert claim_one(harness).job.payload == b'{"version": 2}'

    @rule("U8")
    @pytest.mark.parametrize(
        "fields",
        [
            {"at_most_us": WAIT_US},
            {"at_most_us": 1},
            {"delay_us": 0},
            {"delay_us": 0, "run_at": 2_000_000_000 * SECOND},
            {"lane": "lane"},
        ],
    )
    def test_a_bound_that_cannot_be_kept_is_refused(self, harness: Harness, fields: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            enqueue(harness, debounced("first", **fields))

    # U10: throttled

    @rule("U10", "U3")
    def test_of_throttled_calls_the_first_runs_and_the_others_are_merged_for_a_time(self, harness: Harness) -> None:
        enqueued(harness, throttled("first"))
        acked(harness, claim_one(harness))
        harness.clock.advance(us=PER_US - 1)
        assert enqueue(harness, throttled("second", 2)) == Merged("first")
        harness.clock.advance(us=1)
        enqueued(harness, throttled("third", 3))
        assert claim_ids(harness) == ["third"]

    @rule("U10")
    @pytest.mark.parametrize("how", ["waits", "runs", "succeeded", "failed"])
    def test_a_trailing_job_runs_once_more_when_the_time_is_over_with_the_latest_arguments(
        self, harness: Harness, how: str
    ) -> None:
        enqueued(harness, trailing("first"))
        end = harness.clock.now() + PER_US
        if how != "waits":
            lease = claim_one(harness)
            if how == "succeeded":
                acked(harness, lease)
            elif how == "failed":
                failed_for_good(harness, lease)
        harness.clock.advance(us=SECOND)
        enqueued(harness, trailing("second", 2))
        assert job_of(harness, "second").available_at == end
        replaced(harness, trailing("third", 3), "second")
        assert claim_ids(harness) == (["first"] if how == "waits" else [])
        harness.clock.advance(us=end - harness.clock.now())
        leases = [one for one in harness.store.claim("worker", ["work"], 10) if one.job.id != "first"]
        assert [(one.job.id, one.job.payload) for one in leases] == [("second", b'{"version": 3}')]
        assert job_of(harness, "second").available_at == end

    @rule("U10")
    def test_a_trailing_job_keeps_the_key_from_when_it_is_due(self, harness: Harness) -> None:
        enqueued(harness, trailing("first"))
        began = harness.clock.now()
        acked(harness, claim_one(harness))
        enqueued(harness, trailing("second", 2))
        harness.clock.advance(us=PER_US)
        acked(harness, claim_one(harness))
        harness.reopen()
        harness.clock.advance(us=SECOND)
        enqueued(harness, trailing("third", 3))
        assert job_of(harness, "third").available_at == began + 2 * PER_US
        harness.clock.advance(us=2 * PER_US)
        acked(harness, claim_one(harness))
        harness.clock.advance(us=PER_US)
        enqueued(harness, trailing("fourth", 4))
        assert claim_ids(harness) == ["fourth"]

    @rule("U10", "E2")
    def test_a_repeated_trailing_call_is_a_duplicate(self, harness: Harness) -> None:
        enqueued(harness, trailing("first"))
        enqueued(harness, trailing("second", 2))
        assert enqueue(harness, trailing("second", 2)) == Duplicate("second")
        replaced(harness, trailing("third", 3), "second")
        assert enqueue(harness, trailing("second", 2)) == Duplicate("second")
        assert enqueue(harness, trailing("first", 9)) == Conflict("first")

    @rule("U10")
    def test_a_call_for_a_job_that_still_waits_after_its_time_replaces_it(self, harness: Harness) -> None:
        enqueued(harness, trailing("first"))
        harness.clock.advance(us=PER_US)
        replaced(harness, trailing("second", 2), "first")
        assert claim_one(harness).job.payload == b'{"version": 2}'

    @rule("U10", "U5")
    def test_in_a_batch_the_second_call_trails_and_the_third_replaces_it(self, harness: Harness) -> None:
        calls = [trailing(f"call-{version}", version) for version in range(3)]
        outcomes = harness.store.enqueue(calls)
        assert outcomes == [Enqueued("call-0"), Enqueued("call-1"), Merged("call-1", is_replaced=True)]
        assert claim_ids(harness) == ["call-0"]
        assert job_of(harness, "call-1").spec.payload == b'{"version": 2}'

    @rule("U10")
    @pytest.mark.parametrize("fields", [{"delay_us": 1}, {"run_at": 2_000_000_000 * SECOND}, {"lane": "lane"}])
    def test_a_trailing_call_cannot_name_its_time_or_a_lane(self, harness: Harness, fields: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            enqueue(harness, trailing("first", **fields))
