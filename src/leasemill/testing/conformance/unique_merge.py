"""U4 and U5: keys where jobs come back, and where several come at once."""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import (
    Committed,
    Conflict,
    Duplicate,
    Enqueued,
    EnqueueOutcome,
    Followup,
    HeldBack,
    Merged,
    Operated,
)
from leasemill.kernel.model import SECOND
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    QUEUE,
    acked,
    claim_ids,
    claim_one,
    commit,
    committed,
    enqueue_and_claim,
    enqueue_one,
    every_job,
    failed_for_good,
    job_of,
    redrive,
    spec,
)
from leasemill.testing.conformance.unique_steps import (
    ENDED,
    KEEP_US,
    QUARANTINES,
    enqueued,
    failed,
    follow_up,
    merged_with,
    succeeded,
    unique,
    until_started,
)
from leasemill.testing.rules import rule


class Merging:
    # U4: redrive

    @rule("U4")
    @pytest.mark.parametrize("how", ["failed", "quarantined", "cancelled"])
    def test_a_redriven_job_takes_its_key_again(self, harness: Harness, how: str) -> None:
        enqueued(harness, unique("first", policy=QUARANTINES))
        ENDED[how](harness)
        assert redrive(harness, "first", include_cancelled=True).job_ids == ("first",)
        assert merged_with(harness, unique("second")) == "first"

    @rule("U4")
    @pytest.mark.parametrize("how", ["failed", "quarantined", "cancelled"])
    def test_a_job_whose_key_another_holds_is_not_redriven_and_the_outcome_names_it(
        self, harness: Harness, how: str
    ) -> None:
        enqueued(harness, unique("first", policy=QUARANTINES))
        ENDED[how](harness)
        before = job_of(harness, "first")
        enqueued(harness, unique("second"))
        outcome = redrive(harness, "first", include_cancelled=True)
        assert outcome == Operated((), None, (HeldBack("first", "second"),))
        assert job_of(harness, "first") == before
        succeeded(harness)
        assert redrive(harness, "first", include_cancelled=True) == Operated(("first",), None)
        assert merged_with(harness, unique("third")) == "first"

    @rule("U4", "E6")
    def test_of_jobs_with_one_key_the_first_is_redriven(self, harness: Harness) -> None:
        for job_id in ("first", "second"):
            enqueued(harness, unique(job_id))
            failed_for_good(harness, claim_one(harness))
        assert redrive(harness, "first", "second") == Operated(("first",), None, (HeldBack("second", "first"),))
        assert claim_ids(harness) == ["first"]

    @rule("U4", "U3")
    def test_a_key_that_is_kept_for_another_keeps_a_job_from_being_redriven(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        failed(harness)
        enqueued(harness, unique("second", keep_us=KEEP_US))
        succeeded(harness)
        assert redrive(harness, "first").held_back == (HeldBack("first", "second"),)
        harness.clock.advance(us=KEEP_US)
        assert redrive(harness, "first").job_ids == ("first",)

    @rule("U4", "U3")
    def test_its_own_kept_key_does_not_hold_a_job_back(self, harness: Harness) -> None:
        enqueued(harness, unique("first", keep_us=KEEP_US))
        failed(harness)
        assert redrive(harness, "first").job_ids == ("first",)

    @rule("U2", "U4")
    @pytest.mark.parametrize("how", ["failed", "quarantined", "cancelled"])
    def test_a_redrive_takes_no_key_that_is_held_until_the_start(self, harness: Harness, how: str) -> None:
        enqueued(harness, until_started("first", policy=QUARANTINES))
        ENDED[how](harness)
        enqueued(harness, until_started("second"))
        assert redrive(harness, "first", include_cancelled=True).job_ids == ("first",)
        assert merged_with(harness, until_started("third")) == "second"
        assert sorted(claim_ids(harness)) == ["first", "second"]

    @rule("U4")
    def test_jobs_with_keys_are_redriven_beside_others(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        failed(harness)
        enqueue_one(harness, "plain")
        failed(harness)
        enqueued(harness, unique("lane", "other", lane="lane"))
        failed(harness)
        enqueued(harness, unique("second"))
        outcome = redrive(harness, "first", "plain", "lane")
        assert outcome == Operated(("plain", "lane"), None, (HeldBack("first", "second"),))

    # U5: batches and follow-ups

    @rule("U5", "E6")
    def test_in_a_batch_an_item_sees_the_keys_of_those_before_it(self, harness: Harness) -> None:
        enqueued(harness, unique("known", "taken"))
        batch = [
            unique("a"),
            unique("b"),
            unique("c", "taken"),
            unique("a"),
            unique("a", "taken"),
            spec("plain"),
            unique("d", "free"),
            unique("e", "free"),
            spec("plain"),
        ]
        expected: list[EnqueueOutcome] = [
            Enqueued("a"),
            Merged("a"),
            Merged("known"),
            Duplicate("a"),
            Conflict("a"),
            Enqueued("plain"),
            Enqueued("d"),
            Merged("d"),
            Duplicate("plain"),
        ]
        assert harness.store.enqueue(batch) == expected
        assert harness.store.enqueue(batch[:3]) == [Duplicate("a"), Merged("a"), Merged("known")]
        assert [job.spec.id for job in every_job(harness)] == ["known", "a", "plain", "d"]

    @rule("U5", "E6")
    def test_an_id_that_was_merged_is_not_known_to_the_items_behind_it(self, harness: Harness) -> None:
        enqueued(harness, unique("known", "taken"))
        batch = [unique("a", "taken"), unique("a", "free"), unique("b", "free"), unique("a", "taken")]
        assert harness.store.enqueue(batch) == [Merged("known"), Enqueued("a"), Merged("a"), Conflict("a")]

    @rule("U5")
    def test_a_batch_keeps_its_order_where_some_of_it_is_merged(self, harness: Harness) -> None:
        enqueued(harness, unique("held", "5"))
        harness.store.enqueue([unique(f"job-{number}", str(number)) for number in range(9, 0, -1)])
        assert claim_ids(harness) == ["held", *(f"job-{number}" for number in range(9, 0, -1) if number != 5)]

    @rule("U5", "X6", "L6")
    def test_a_follow_up_that_is_merged_makes_no_job_and_its_id_is_the_holders(self, harness: Harness) -> None:
        enqueued(harness, unique("holder", delay_us=SECOND))
        lease = enqueue_and_claim(harness, "parent")
        followups = [follow_up(unique("", payload=b"[1]")), Followup("work", "kind"), follow_up(unique("", "free"))]
        outcome = Committed("parent", ("holder", "parent/1", "parent/2"))
        assert commit(harness, lease, followups=followups) == outcome
        assert commit(harness, lease, followups=followups) == Committed("parent", outcome.followup_ids, is_repeat=True)
        assert harness.store.job("parent/0") is None
        assert merged_with(harness, unique("later", "free")) == "parent/2"
        assert sorted(claim_ids(harness)) == ["parent/1", "parent/2"]

    @rule("U5", "U6", "L6")
    def test_a_repeated_commit_names_the_holder_as_long_as_it_holds_the_key(self, harness: Harness) -> None:
        """Then no store knows which job took the key, not even one that was opened since."""
        enqueued(harness, unique("holder", delay_us=SECOND))
        lease = enqueue_and_claim(harness, "parent")
        followups = [follow_up(unique(""))]
        assert committed(harness, lease, followups=followups).followup_ids == ("holder",)
        harness.clock.advance(us=SECOND)
        acked(harness, claim_one(harness))
        for _ in range(2):
            assert commit(harness, lease, followups=followups) == Committed("parent", ("parent/0",), is_repeat=True)
            harness.reopen()

    @rule("U5", "E6")
    def test_a_follow_up_sees_the_keys_of_those_before_it(self, harness: Harness) -> None:
        lease = enqueue_and_claim(harness, "parent")
        followups = [follow_up(unique("")), follow_up(unique(""))]
        assert committed(harness, lease, followups=followups).followup_ids == ("parent/0", "parent/0")
        assert claim_ids(harness) == ["parent/0"]

    @rule("U5", "U2")
    def test_a_job_that_follows_up_on_itself_holds_its_key_until_it_has_ended(self, harness: Harness) -> None:
        enqueued(harness, unique("first"))
        enqueued(harness, until_started("second", "other"))
        first, second = claim_one(harness), claim_one(harness)
        again = committed(harness, first, followups=[follow_up(unique(""))])
        assert again.followup_ids == ("first",)
        again = committed(harness, second, followups=[follow_up(until_started("", "other"))])
        assert again.followup_ids == ("second/0",)

    @rule("U5", "X6")
    def test_a_conflicting_follow_up_leaves_no_key_behind(self, harness: Harness) -> None:
        enqueue_one(harness, "parent/1", queue="elsewhere")
        lease = enqueue_and_claim(harness, "parent")
        followups = [follow_up(unique("")), Followup("work", "kind")]
        assert commit(harness, lease, followups=followups) == Conflict("parent/1")
        assert harness.store.key(QUEUE, "key") is None
        enqueued(harness, unique("other"))
