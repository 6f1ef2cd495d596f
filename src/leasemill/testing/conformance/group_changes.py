"""B: groups whose counts go back, grow while they are sealed, or are part of others."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leasemill.errors import GroupRefused
from leasemill.kernel.commands import Followup, JobFilter, Merged
from leasemill.kernel.model import SECOND, ChainedJob, JobState, Rules, UniqueKey
from leasemill.testing.conformance.group_steps import (
    BOTH,
    CALLBACKS,
    END,
    GROUP,
    MEMBER,
    NONE,
    ON_END,
    THEN,
    callbacks,
    counts,
    create,
    group_of,
    seal,
    with_members,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    cancelled,
    claim,
    claim_one,
    commit,
    committed,
    enqueue,
    enqueue_one,
    failed_for_good,
    job_of,
    purge,
    redrive,
    spec,
    state_of,
)
from leasemill.testing.rules import rule


class Regrouping:
    @rule("B2", "B4")
    def test_a_redrive_reopens_the_count_and_then_is_called_in_the_end(self, harness: Harness) -> None:
        with_members(harness, "a", "b")
        first, second = claim(harness, 2)
        failed_for_good(harness, first)
        ended_at = harness.clock.now()
        acked(harness, second)
        assert callbacks(harness) == END
        harness.clock.advance(s=1)
        where = JobFilter(group=GROUP)
        assert harness.store.redrive(where, by=OPERATOR, reason=WHY).job_ids == ("a",)
        assert (counts(harness), group_of(harness).is_over) == ((2, 1, 0, 0, 0, 1), False)
        acked(harness, claim_one(harness))
        assert counts(harness) == (2, 2, 0, 0, 0, 0)
        assert callbacks(harness) == BOTH
        assert group_of(harness).ended_at == ended_at
        assert group_of(harness).succeeded_at == harness.clock.now()

    @rule("B2", "B4")
    def test_the_end_is_called_once_ever(self, harness: Harness) -> None:
        with_members(harness, "a")
        for _ in range(3):
            failed_for_good(harness, claim_one(harness))
            assert (counts(harness), callbacks(harness)) == ((1, 0, 1, 0, 0, 0), END)
            redrive(harness, "a")
        end = job_of(harness, f"{GROUP}/end")
        assert (end.attempt, end.state) == (0, JobState.READY)

    @rule("B4", "O1", "O2")
    def test_a_failure_that_is_cancelled_counts_as_cancelled(self, harness: Harness) -> None:
        with_members(harness, "a")
        failed_for_good(harness, claim_one(harness))
        cancelled(harness, "a")
        assert (counts(harness), callbacks(harness)) == ((1, 0, 0, 0, 1, 0), END)
        redrive(harness, "a", include_cancelled=True)
        assert counts(harness) == (1, 0, 0, 0, 0, 1)
        acked(harness, claim_one(harness))
        assert (counts(harness), callbacks(harness)) == ((1, 1, 0, 0, 0, 0), BOTH)

    @rule("B4", "O5", "O7")
    def test_what_is_forgotten_stays_counted(self, harness: Harness) -> None:
        with_members(harness, "a", "b", "c")
        first, second, third = claim(harness, 3)
        acked(harness, first)
        failed_for_good(harness, second)
        harness.store.prune(harness.clock.now() + 1, keep=0)
        assert purge(harness, "b", "c").job_ids == ("b",)
        assert counts(harness) == (3, 1, 1, 0, 0, 1)
        acked(harness, third)
        assert (counts(harness), callbacks(harness)) == ((3, 2, 1, 0, 0, 0), END)

    @rule("B4", "O7")
    def test_a_group_is_forgotten_after_its_members(self, harness: Harness) -> None:
        with_members(harness, "a", "b")
        create(harness, "open", then=None, on_end=None)
        first, second = claim(harness, 2)
        acked(harness, first)
        failed_for_good(harness, second)
        harness.clock.advance(s=1)
        for _ in range(2):
            harness.store.prune(harness.clock.now(), keep=0)
        assert [group.id for group in harness.store.groups()] == [GROUP, "open"]
        purge(harness, "b")
        harness.store.prune(harness.clock.now(), keep=100)
        assert [group.id for group in harness.store.groups()] == ["open"]
        with pytest.raises(GroupRefused, match="still there"):
            create(harness)
        acked(harness, claim_one(harness, queue=CALLBACKS))
        harness.clock.advance(s=1)
        harness.store.prune(harness.clock.now(), keep=0)
        assert create(harness).total == 0

    @rule("B5")
    def test_a_member_adds_members_in_its_commit(self, harness: Harness) -> None:
        with_members(harness, "a")
        lease = claim_one(harness)
        outcome = committed(harness, lease, followups=[Followup(QUEUE, "kind", rules=MEMBER)] * 2)
        assert outcome.followup_ids == ("a/0", "a/1")
        assert counts(harness) == (3, 0, 0, 0, 0, 3)
        assert committed(harness, lease, followups=[Followup(QUEUE, "kind", rules=MEMBER)] * 2).is_repeat
        acked(harness, lease)
        assert (counts(harness), callbacks(harness)) == ((3, 1, 0, 0, 0, 2), NONE)
        for one in claim(harness, 2):
            acked(harness, one)
        assert (counts(harness), callbacks(harness)) == ((3, 3, 0, 0, 0, 0), BOTH)

    @rule("B5", "X6")
    def test_only_a_member_adds_members_to_a_sealed_group(self, harness: Harness) -> None:
        with_members(harness, "a")
        enqueue_one(harness, "other", priority=9)
        lease = claim_one(harness)
        assert lease.job.id == "other"
        with pytest.raises(GroupRefused, match="sealed"):
            commit(harness, lease, followups=[Followup(QUEUE, "kind"), Followup(QUEUE, "kind", rules=MEMBER)])
        assert counts(harness) == (1, 0, 0, 0, 0, 1)
        committed(harness, lease, followups=[Followup(QUEUE, "kind")])

    @rule("B5")
    def test_any_job_adds_members_to_an_open_group(self, harness: Harness) -> None:
        create(harness)
        enqueue_one(harness)
        committed(harness, claim_one(harness), followups=[Followup(QUEUE, "kind", rules=MEMBER)])
        assert counts(harness) == (1, 0, 0, 0, 0, 1)

    @rule("B7")
    def test_a_group_counts_as_one_member_of_its_parent(self, harness: Harness) -> None:
        create(harness, "parent")
        create(harness, "child", parent="parent", then=THEN, on_end=None)
        seal(harness, "parent")
        assert counts(harness, "parent") == (1, 0, 0, 0, 0, 1)
        enqueue_one(harness, rules=Rules(group="child"))
        seal(harness, "child")
        acked(harness, claim_one(harness))
        assert callbacks(harness) == ["child/then"]
        assert job_of(harness, "child/then").spec.rules == Rules(group="parent")
        assert counts(harness, "parent") == (2, 1, 0, 0, 0, 1)
        acked(harness, claim_one(harness, queue=CALLBACKS))
        assert counts(harness, "parent") == (2, 2, 0, 0, 0, 0)
        assert callbacks(harness) == ["child/then", "parent/end", "parent/then"]

    @rule("B7", "B4")
    def test_a_redrive_reopens_the_parent_too(self, harness: Harness) -> None:
        create(harness, "parent")
        create(harness, "child", parent="parent", then=None, on_end=None)
        for group in ("parent", "child"):
            seal(harness, group)
        assert callbacks(harness) == ["parent/end", "parent/then"]
        create(harness, "outer", on_end=None)
        create(harness, "middle", parent="outer", then=None, on_end=None)
        create(harness, "inner", parent="middle", then=None, on_end=None)
        enqueue_one(harness, rules=Rules(group="inner"))
        for group in ("outer", "middle", "inner"):
            seal(harness, group)
        failed_for_good(harness, claim_one(harness))
        assert counts(harness, "outer") == counts(harness, "middle") == (1, 0, 1, 0, 0, 0)
        assert group_of(harness, "outer").is_over
        redrive(harness, "job")
        assert counts(harness, "outer") == counts(harness, "middle") == (1, 0, 0, 0, 0, 1)
        acked(harness, claim_one(harness))
        assert counts(harness, "outer") == counts(harness, "middle") == (1, 1, 0, 0, 0, 0)
        assert "outer/then" in callbacks(harness)

    @rule("B3", "B7")
    def test_a_group_is_cancelled_with_the_groups_in_it(self, harness: Harness) -> None:
        """Outer ones, over ones and others are left as they are; the callbacks of those inside are its members."""
        for group, parent in (("outer", None), (GROUP, "outer"), ("first", GROUP), ("deep", "first")):
            create(harness, group, parent=parent)
            enqueue_one(harness, f"in-{group}", rules=Rules(group=group))
        create(harness, "empty", parent=GROUP)
        create(harness, "over", parent=GROUP, then=None, on_end=None)
        seal(harness, "over")
        create(harness, "beside", parent="outer")
        enqueue_one(harness, "in-beside", rules=Rules(group="beside"))
        lease = claim_one(harness)
        assert lease.job.id == "in-outer"
        gone = harness.store.cancel_group(GROUP, by=OPERATOR, reason=WHY)
        callbacks_inside = ["deep/end", "empty/end", "empty/then", "first/end"]
        assert sorted(gone) == [*callbacks_inside, "in-deep", "in-first", f"in-{GROUP}"]
        for group in (GROUP, "first", "deep", "empty", "over"):
            assert group_of(harness, group).is_over, group
        assert state_of(harness, f"{GROUP}/end") is JobState.READY
        assert f"{GROUP}/then" not in callbacks(harness)
        assert state_of(harness, "in-beside") is JobState.READY
        assert (group_of(harness, "outer").sealed_at, group_of(harness, "beside").sealed_at) == (None, None)
        assert harness.store.cancel_group(GROUP, by=OPERATOR, reason=WHY) == []
        acked(harness, lease)

    @rule("B7", "O6")
    def test_the_groups_in_a_group_are_listed(self, harness: Harness) -> None:
        for group, parent in (("a", None), ("b", "a"), ("c", "a"), ("d", "b"), ("e", "a")):
            create(harness, group, parent=parent, then=None, on_end=None)
        seal(harness, "c")
        assert [one.id for one in harness.store.groups(parent="a")] == ["b", "c", "e"]
        assert [one.id for one in harness.store.groups(parent="a", open_only=True, after="b")] == ["e"]
        assert harness.store.groups(parent="none") == []

    @rule("B7")
    def test_a_parent_that_takes_no_members_takes_no_groups(self, harness: Harness) -> None:
        with pytest.raises(GroupRefused, match="not known"):
            create(harness, parent="parent")
        create(harness, "parent")
        seal(harness, "parent")
        with pytest.raises(GroupRefused, match="sealed"):
            create(harness, parent="parent")

    @rule("B1", "U1")
    def test_a_job_that_is_merged_is_no_member(self, harness: Harness) -> None:
        create(harness)
        rules = Rules(unique=UniqueKey("key"), group=GROUP)
        enqueue_one(harness, "a", rules=rules)
        assert enqueue(harness, spec("b", rules=rules)) == Merged("a")
        assert counts(harness) == (1, 0, 0, 0, 0, 1)
        lease = claim_one(harness)
        committed(harness, lease, followups=[Followup(QUEUE, "kind", rules=rules)])
        assert counts(harness) == (1, 0, 0, 0, 0, 1)
        seal(harness)
        acked(harness, lease)
        assert (counts(harness), callbacks(harness)) == ((1, 1, 0, 0, 0, 0), BOTH)

    @rule("B2", "U1", "U5")
    def test_of_two_callbacks_with_one_key_the_second_is_merged(self, harness: Harness) -> None:
        create(harness, then=replace(THEN, unique=UniqueKey("key")), on_end=replace(ON_END, unique=UniqueKey("key")))
        seal(harness)
        assert (group_of(harness).is_over, callbacks(harness)) == (True, END)
        held = harness.store.key(CALLBACKS, "key")
        assert held is not None
        assert held.job_id == END[0]

    @rule("B6", "U1")
    def test_a_chained_job_whose_key_is_held_is_merged_and_not_counted(self, harness: Harness) -> None:
        create(harness)
        enqueue_one(harness, "holder", delay_us=SECOND, rules=Rules(unique=UniqueKey("key")))
        chained = ChainedJob(QUEUE, "kind", unique=UniqueKey("key"))
        enqueue_one(harness, rules=Rules(group=GROUP, chain=(chained,)))
        seal(harness)
        acked(harness, claim_one(harness))
        assert (counts(harness), callbacks(harness)) == ((1, 1, 0, 0, 0, 0), BOTH)
        assert state_of(harness, "holder") is JobState.READY
