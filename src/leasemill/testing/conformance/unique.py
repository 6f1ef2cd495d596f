"""U1 to U3: one job for each key, for as long as it is held and no longer."""

from __future__ import annotations

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.commands import (
    Conflict,
    Duplicate,
    JobFilter,
    KeyView,
)
from leasemill.kernel.model import SECOND, JobState
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    QUEUE,
    acked,
    cancelled,
    claim_ids,
    claim_one,
    enqueue,
    enqueue_one,
    every_job,
    failed_for_good,
    job_of,
    nacked,
    spec,
)
from leasemill.testing.conformance.unique_steps import (
    ENDED,
    KEEP_US,
    QUARANTINES,
    UNFINISHED,
    enqueued,
    merged_with,
    succeeded,
    unique,
    until_started,
    was_purged,
)
from leasemill.testing.rules import rule


class Uniques:
    # U1: one job for a key

    @rule("U1")
    def test_an_enqueue_with_a_key_that_is_held_makes_no_job_and_names_the_holder(self, harness: Harness) -> None:
        enqueued(harness, unique("first", payload=b'{"a": 1}'))
        assert merged_with(harness, unique("second", payload=b'{"a": 2}')) == "first"
        assert [job.spec.id for job in every_job(harness)] == ["first"]
        assert job_of(harness, "first").spec.payload == b'{"a": 1}'
        assert claim_ids(harness) == ["first"]

    @rule("U1")
    def test_other_keys_and_jobs_without_a_key_are_not_concerned(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        enqueued(harness, unique("second", "other"))
        enqueue_one(harness, "third")
        assert claim_ids(harness) == ["first", "second", "third"]

    @rule("U1")
    def test_a_key_is_one_key_for_every_kind_and_lane_of_its_queue(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        enqueued(harness, unique("second", queue="elsewhere"))
        assert merged_with(harness, unique("third", kind="other")) == "first"
        assert merged_with(harness, unique("fourth", lane="lane")) == "first"

    @rule("U1")
    @pytest.mark.parametrize("key", ["1", "1.0", "Grüße", "Gru\u0308\u00dfe", "a b", "'; --", "x" * 200, "{1,2}", "\\"])
    def test_keys_are_compared_as_they_are(self, harness: Harness, key: str) -> None:
        for number, other in enumerate(("1", "1.0", "Grüße", "Gru\u0308\u00dfe")):
            if other != key:
                enqueued(harness, unique(f"other-{number}", other))
        enqueued(harness, unique("first", key))
        assert merged_with(harness, unique("second", key)) == "first"

    @rule("U1", "E2", "E4")
    def test_a_known_id_is_a_duplicate_or_a_conflict_before_its_key_is_looked_at(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        enqueued(harness, unique("other", "taken"))
        assert enqueue(harness, unique("first")) == Duplicate("first")
        assert enqueue(harness, unique("first", "taken")) == Conflict("first")
        assert enqueue(harness, spec("first")) == Conflict("first")
        assert enqueue(harness, until_started("first")) == Conflict("first")

    @rule("U1", "E2")
    def test_the_repeat_of_a_unique_job_that_has_ended_is_a_duplicate_and_takes_nothing(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        succeeded(harness)
        assert enqueue(harness, unique("first")) == Duplicate("first")
        enqueued(harness, unique("second"))

    @rule("U1")
    @pytest.mark.parametrize("key", ["", "a\nb", "x" * 201])
    def test_a_malformed_key_is_refused(self, harness: Harness, key: str) -> None:
        with pytest.raises(Invalid, match="unique key"):
            enqueue(harness, unique("first", key))

    # U2: until ended, until started

    @rule("U2")
    @pytest.mark.parametrize("how", UNFINISHED)
    def test_until_ended_is_held_through_everything_but_the_end(self, harness: Harness, how: str) -> None:
        enqueued(harness, unique("first"))
        UNFINISHED[how](harness)
        assert merged_with(harness, unique("second")) == "first"

    @rule("U2", "U6")
    @pytest.mark.parametrize("how", ENDED)
    def test_a_job_that_has_ended_or_is_gone_holds_no_key(self, harness: Harness, how: str) -> None:
        enqueued(harness, unique("first", policy=QUARANTINES))
        ENDED[how](harness)
        assert harness.store.key(QUEUE, "key") is None
        enqueued(harness, unique("second"))
        assert merged_with(harness, unique("third")) == "second"

    @rule("U2")
    @pytest.mark.parametrize("how", [how for how in UNFINISHED if how != "waits"])
    def test_until_started_is_let_go_at_the_first_claim_for_good(self, harness: Harness, how: str) -> None:
        enqueued(harness, until_started("first"))
        assert merged_with(harness, until_started("second")) == "first"
        UNFINISHED[how](harness)
        enqueued(harness, until_started("third"))
        assert merged_with(harness, until_started("fourth")) == "third"

    @rule("U2", "U6")
    @pytest.mark.parametrize("how", ENDED)
    def test_until_started_is_let_go_at_the_end_too(self, harness: Harness, how: str) -> None:
        enqueued(harness, until_started("first", policy=QUARANTINES))
        ENDED[how](harness)
        enqueued(harness, until_started("second"))

    @rule("U2")
    def test_one_waits_while_one_runs_and_when_that_fails_both_run(self, harness: Harness) -> None:
        enqueued(harness, until_started("first"))
        running = claim_one(harness)
        enqueued(harness, until_started("second"))
        nacked(harness, running, delay_us=0)
        assert sorted(claim_ids(harness)) == ["first", "second"]

    # U3: keep

    @rule("U3")
    @pytest.mark.parametrize("how", ENDED)
    def test_a_kept_key_is_held_until_its_time_is_over_whatever_became_of_the_job(
        self, harness: Harness, how: str
    ) -> None:
        enqueued(harness, unique("first", keep_us=KEEP_US, policy=QUARANTINES))
        until = harness.clock.now() + KEEP_US
        ENDED[how](harness)
        harness.reopen()
        harness.clock.advance(us=until - harness.clock.now() - 1)
        assert merged_with(harness, unique("second")) == "first"
        harness.clock.advance(us=1)
        enqueued(harness, unique("third"))

    @rule("U3", "L8")
    def test_a_kept_key_is_held_by_the_clock_of_the_store_also_when_it_is_stepped(self, harness: Harness) -> None:
        """A step back holds it longer by the step, a step forward frees it early; neither holds it for ever."""
        enqueued(harness, unique("first", keep_us=KEEP_US))
        succeeded(harness)
        harness.clock.advance(us=-KEEP_US)
        assert merged_with(harness, unique("second")) == "first"
        harness.clock.advance(us=2 * KEEP_US - 1)
        assert merged_with(harness, unique("second")) == "first"
        harness.clock.advance(us=1)
        enqueued(harness, unique("second", keep_us=KEEP_US))
        cancelled(harness, "second")
        harness.clock.advance(us=10 * KEEP_US)
        enqueued(harness, unique("third", keep_us=KEEP_US))
        harness.clock.advance(us=-10 * KEEP_US)
        assert merged_with(harness, unique("fourth")) == "third"

    @rule("U3")
    def test_a_kept_key_is_held_longer_by_a_job_that_has_not_ended(self, harness: Harness) -> None:
        enqueued(harness, unique("first", keep_us=SECOND))
        harness.clock.advance(us=KEEP_US)
        assert merged_with(harness, unique("second", keep_us=SECOND)) == "first"
        succeeded(harness)
        enqueued(harness, unique("third", keep_us=SECOND))

    @rule("U3")
    def test_another_job_with_the_forgotten_holders_id_changes_nothing(self, harness: Harness) -> None:
        enqueued(harness, unique("first", keep_us=KEEP_US))
        was_purged(harness)
        enqueue_one(harness, "first")
        assert merged_with(harness, unique("second")) == "first"
        harness.clock.advance(us=KEEP_US)
        enqueued(harness, unique("second"))

    # Reading

    @rule("U1", "U3")
    def test_the_holder_of_a_key_can_be_read(self, harness: Harness) -> None:
        assert harness.store.key(QUEUE, "key") is None
        enqueued(harness, unique("first", keep_us=KEEP_US))
        until = harness.clock.now() + KEEP_US
        assert harness.store.key(QUEUE, "key") == KeyView(QUEUE, "key", "first", until)
        was_purged(harness)
        assert harness.store.key(QUEUE, "key") == KeyView(QUEUE, "key", "first", until)
        harness.clock.advance(us=KEEP_US)
        assert harness.store.key(QUEUE, "key") is None
        enqueued(harness, unique("second"))
        assert harness.store.key(QUEUE, "key") == KeyView(QUEUE, "key", "second", None)

    @rule("U1", "O6")
    def test_jobs_are_listed_by_their_key(self, harness: Harness) -> None:
        for number in range(3):
            enqueued(harness, unique(f"job-{number}"))
            succeeded(harness)
        enqueued(harness, unique("other", "other"))
        enqueue_one(harness, "plain")
        listed = every_job(harness, JobFilter(unique_key="key"), limit=2)
        assert [job.spec.id for job in listed] == ["job-0", "job-1", "job-2"]
        newest = harness.store.jobs(JobFilter(unique_key="key"), newest_first=True, limit=1)
        assert [job.spec.id for job in newest.jobs] == ["job-2"]
        failed_for_good(harness, claim_one(harness))
        states = frozenset({JobState.FAILED})
        assert [job.spec.id for job in every_job(harness, JobFilter(unique_key="other", states=states))] == ["other"]
        assert every_job(harness, JobFilter(unique_key="key", states=states)) == []

    # In lanes

    @rule("U1", "U2", "N2")
    def test_unique_jobs_take_their_turns_in_lanes(self, harness: Harness) -> None:
        for number in range(3):
            enqueued(harness, until_started(f"job-{number}", str(number), lane="lane"))
        assert merged_with(harness, until_started("late", "2", lane="lane")) == "job-2"
        for number in range(3):
            assert harness.store.key(QUEUE, str(number)) == KeyView(QUEUE, str(number), f"job-{number}", None)
            lease = claim_one(harness)
            assert harness.store.key(QUEUE, str(number)) is None
            acked(harness, lease)
