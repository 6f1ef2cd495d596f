"""B: groups, whose members end together: their counts and their callbacks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leasemill.errors import GroupRefused, Invalid, NotFound, QueueRefused
from leasemill.kernel.commands import AckReport, CancelGroup, Conflict, Duplicate, Enqueued, JobFilter
from leasemill.kernel.model import Action, ChainedJob, JobState, LimitUse, Policy, Rules, Verb
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
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.steps import (
    OPERATOR,
    QUEUE,
    WHY,
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
    enqueue_many,
    enqueue_one,
    every_job,
    expired,
    failed_for_good,
    job_of,
    let_expire,
    nacked,
    refused,
    released,
    spec,
    started,
    state_of,
)
from leasemill.testing.rules import rule


class Grouping:
    @rule("B1")
    def test_a_group_counts_its_members(self, harness: Harness) -> None:
        view = create(harness)
        assert (view.id, view.then, view.on_end, view.parent) == (GROUP, THEN, ON_END, None)
        assert (view.created_at, view.sealed_at, view.is_over) == (harness.clock.now(), None, False)
        enqueue_many(harness, "a", "b", "c", rules=MEMBER)
        enqueue_one(harness, "other")
        assert counts(harness) == (3, 0, 0, 0, 0, 3)
        assert enqueue(harness, spec("a", rules=MEMBER)) == Duplicate("a")
        assert enqueue(harness, spec("a", rules=MEMBER, priority=1)) == Conflict("a")
        assert counts(harness) == (3, 0, 0, 0, 0, 3)

    @rule("B1", "E6")
    def test_a_batch_is_counted_for_each_group(self, harness: Harness) -> None:
        create(harness, "one")
        create(harness, "two")
        jobs = [spec(f"job-{number}", rules=Rules(group="two" if number % 3 else "one")) for number in range(9)]
        assert harness.store.enqueue([*jobs, jobs[0]]) == [*(Enqueued(job.id) for job in jobs), Duplicate("job-0")]
        assert (counts(harness, "one")[0], counts(harness, "two")[0]) == (3, 6)

    @rule("B1", "E6")
    @pytest.mark.parametrize("is_sealed", [False, True])
    def test_each_end_of_a_member_is_counted_with_it(self, harness: Harness, is_sealed: bool) -> None:
        create(harness, "one")
        create(harness, "two")
        members = {"a": "one", "b": "two", "c": "one", "d": "one", "e": "two", "left": "one", "kept": "two"}
        for job_id, group_id in members.items():
            enqueue_one(harness, job_id, rules=Rules(group=group_id))
        if is_sealed:
            seal(harness, "one")
            seal(harness, "two")
        kept = StayingOpen(harness)
        first, *others, left, _ = claim(kept, len(members))
        acked(kept, first)
        assert (counts(kept, "one"), counts(kept, "two")) == ((4, 1, 0, 0, 0, 3), (3, 0, 0, 0, 0, 3))
        kept.store.ack([AckReport(lease.job.id, lease.token) for lease in [*others, first]])
        assert (counts(kept, "one"), counts(kept, "two")) == ((4, 3, 0, 0, 0, 1), (3, 2, 0, 0, 0, 1))
        nacked(kept, left, delay_us=0)
        assert counts(kept, "one") == (4, 3, 0, 0, 0, 1)
        acked(kept, claim_one(kept))
        cancelled(kept, "kept")
        assert (counts(kept, "one"), counts(kept, "two")) == ((4, 4, 0, 0, 0, 0), (3, 2, 0, 0, 1, 0))
        assert (group_of(kept, "one").is_over, group_of(kept, "two").is_over) == (is_sealed, is_sealed)

    @rule("B1")
    def test_an_unknown_group_takes_no_members(self, harness: Harness) -> None:
        with pytest.raises(GroupRefused, match="'group' is not known"):
            harness.store.enqueue([spec("first"), spec(rules=MEMBER)])
        assert every_job(harness) == []

    @rule("B1", "B3")
    def test_a_sealed_group_takes_no_new_members(self, harness: Harness) -> None:
        with_members(harness, "a")
        with pytest.raises(GroupRefused, match="is sealed"):
            enqueue(harness, spec("b", rules=MEMBER))
        assert enqueue(harness, spec("a", rules=MEMBER)) == Duplicate("a")
        assert counts(harness) == (1, 0, 0, 0, 0, 1)

    @rule("B1", "E2", "E4")
    def test_a_group_is_created_once(self, harness: Harness) -> None:
        create(harness)
        enqueue_one(harness, rules=MEMBER)
        again = harness.store.create_group(GROUP, then=THEN, on_end=ON_END)
        assert (again.is_repeat, again.group.total) == (True, 1)
        with pytest.raises(GroupRefused, match="other content"):
            harness.store.create_group(GROUP, then=ON_END, on_end=ON_END)
        headers = {"trace": "another"}
        assert harness.store.create_group(GROUP, then=replace(THEN, headers=headers), on_end=ON_END).is_repeat

    @rule("B1", "I4")
    def test_a_malformed_group_is_refused(self, harness: Harness) -> None:
        for group_id, fields in (
            ("", {}),
            ("x" * 201, {}),
            (GROUP, {"parent": GROUP}),
            (GROUP, {"then": ChainedJob("no such name!", "kind")}),
            (GROUP, {"on_end": ChainedJob(QUEUE, "kind", b"not json")}),
            (GROUP, {"then": ChainedJob(QUEUE, "kind", result_name="result")}),
        ):
            with pytest.raises(Invalid):
                harness.store.create_group(group_id, **fields)
        assert harness.store.groups() == []

    @rule("B2")
    def test_the_last_success_enqueues_both_callbacks(self, harness: Harness) -> None:
        with_members(harness, "a", "b")
        first, second = claim(harness, 2)
        acked(harness, first)
        assert callbacks(harness) == NONE
        harness.clock.advance(s=1)
        acked(harness, second)
        assert callbacks(harness) == BOTH
        view = group_of(harness)
        assert (view.is_over, view.ended_at, view.succeeded_at) == (True, harness.clock.now(), harness.clock.now())
        assert counts(harness) == (2, 2, 0, 0, 0, 0)
        then = job_of(harness, f"{GROUP}/then")
        assert (then.spec.kind, then.spec.payload, then.spec.rules) == ("then", b'{"of":"all"}', None)
        assert claim_ids(harness, 10, CALLBACKS) == BOTH
        acked(harness, first)
        assert counts(harness) == (2, 2, 0, 0, 0, 0)

    @rule("B2")
    def test_a_batch_that_ends_the_group_enqueues_its_callbacks_once(self, harness: Harness) -> None:
        with_members(harness, *(f"job-{number}" for number in range(7)))
        leases = claim(harness, 7)
        harness.store.ack([AckReport(lease.job.id, lease.token) for lease in leases])
        assert callbacks(harness) == BOTH
        assert counts(harness) == (7, 7, 0, 0, 0, 0)

    @rule("B2", "X7")
    @pytest.mark.parametrize(
        "how", ["commit and ack", "commit and expire", "commit and death", "commit and nack", "commit and release"]
    )
    def test_a_committed_member_succeeds_however_it_ends(self, harness: Harness, how: str) -> None:
        with_members(harness, "a")
        lease = claim_one(harness)
        committed(harness, lease, result=b"1")
        assert counts(harness) == (1, 0, 0, 0, 0, 1)
        match how:
            case "commit and ack":
                acked(harness, lease)
            case "commit and expire":
                expired(harness, lease)
            case "commit and death":
                died(harness, lease)
            case "commit and nack":
                nacked(harness, lease)
            case _:
                released(harness, lease)
        assert counts(harness) == (1, 1, 0, 0, 0, 0)
        assert callbacks(harness) == BOTH

    @rule("B2", "L3")
    def test_a_refused_report_that_records_an_expiry_ends_the_group(self, harness: Harness) -> None:
        with_members(harness, "a", policy=Policy(max_expirations=1))
        lease = claim_one(harness)
        started(harness, lease)
        let_expire(harness, lease)
        refused(ack(harness, lease))
        assert counts(harness) == (1, 0, 0, 1, 0, 0)
        assert callbacks(harness) == END

    @rule("B2")
    @pytest.mark.parametrize("end", ["failed", "dead", "died", "cancelled"])
    def test_without_success_of_all_only_the_end_is_called(self, harness: Harness, end: str) -> None:
        with_members(harness, "a", "b", policy=Policy(max_expirations=1))
        first, second = claim(harness, 2)
        started(harness, first)
        acked(harness, second)
        match end:
            case "failed":
                failed_for_good(harness, first)
            case "dead":
                expired(harness, first)
            case "died":
                died(harness, first)
            case _:
                cancelled(harness, "a")
        dead = (2, 1, 0, 1, 0, 0)
        expected = {"failed": (2, 1, 1, 0, 0, 0), "dead": dead, "died": dead, "cancelled": (2, 1, 0, 0, 1, 0)}
        assert counts(harness) == expected[end]
        assert callbacks(harness) == END
        assert group_of(harness).succeeded_at is None

    @rule("B2", "F2")
    def test_a_retry_ends_nothing(self, harness: Harness) -> None:
        with_members(harness, "a")
        nacked(harness, claim_one(harness), delay_us=0)
        assert counts(harness) == (1, 0, 0, 0, 0, 1)
        released(harness, claim_one(harness))
        lease = claim_one(harness)
        expired(harness, lease)
        died(harness, claim_one(harness))
        assert (counts(harness), callbacks(harness)) == ((1, 0, 0, 0, 0, 1), NONE)

    @rule("B3")
    def test_an_open_group_does_not_end(self, harness: Harness) -> None:
        with_members(harness, "a", is_sealed=False)
        acked(harness, claim_one(harness))
        assert (callbacks(harness), group_of(harness).is_over) == (NONE, False)
        enqueue_one(harness, "b", rules=MEMBER)
        acked(harness, claim_one(harness))
        assert callbacks(harness) == NONE
        assert seal(harness).is_over
        assert callbacks(harness) == BOTH

    @rule("B3")
    def test_a_group_without_members_ends_when_it_is_sealed(self, harness: Harness) -> None:
        create(harness)
        view = seal(harness)
        assert (view.is_over, view.total, view.succeeded_at) == (True, 0, harness.clock.now())
        assert callbacks(harness) == BOTH
        harness.clock.advance(s=1)
        assert seal(harness) == view
        assert callbacks(harness) == BOTH

    @rule("B3")
    def test_a_group_needs_no_callbacks(self, harness: Harness) -> None:
        create(harness, then=None, on_end=None)
        enqueue_one(harness, rules=MEMBER)
        seal(harness)
        acked(harness, claim_one(harness))
        assert group_of(harness).is_over
        assert [job.spec.id for job in every_job(harness)] == ["job"]

    @rule("B3")
    def test_sealing_what_is_not_there_is_refused(self, harness: Harness) -> None:
        with pytest.raises(NotFound):
            seal(harness)
        with pytest.raises(NotFound):
            harness.store.cancel_group(GROUP, by=OPERATOR, reason=WHY)
        assert harness.store.group(GROUP) is None

    @rule("B3", "O1")
    def test_a_cancelled_group_is_sealed_and_its_members_are_cancelled(self, harness: Harness) -> None:
        with_members(harness, *"abcde", is_sealed=False)
        enqueue_one(harness, "other")
        done, held, has_committed, *_ = claim(harness, 3)
        acked(harness, done)
        committed(harness, has_committed)
        changed: list[str] = []
        after: int | None = 0
        while after is not None:
            page = harness.store.run(CancelGroup(GROUP, OPERATOR, WHY, 2, after))
            changed += page.job_ids
            after = page.after
        assert sorted(changed) == ["b", "c", "d", "e"]
        refused(ack(harness, held))
        assert counts(harness) == (5, 2, 0, 0, 3, 0)
        assert callbacks(harness) == END
        assert state_of(harness, "other") is JobState.READY
        with pytest.raises(GroupRefused):
            enqueue(harness, spec("late", rules=MEMBER))
        assert harness.store.cancel_group(GROUP, by=OPERATOR, reason=WHY) == []

    @rule("B3", "O8")
    def test_sealing_by_an_operator_is_an_action(self, harness: Harness) -> None:
        create(harness)
        create(harness, "other")
        seal(harness, "other")
        assert harness.store.actions() == []
        at = harness.clock.now()
        harness.store.seal_group(GROUP, by=OPERATOR, reason=WHY)
        harness.store.seal_group(GROUP, by=OPERATOR, reason="again")
        assert harness.store.actions() == [Action(at, Verb.SEAL_GROUP, OPERATOR, GROUP, WHY)]
        with pytest.raises(Invalid, match="reason"):
            harness.store.seal_group(GROUP, by=OPERATOR)

    @rule("B2", "I6")
    def test_a_long_group_id_is_cut_to_a_digest(self, harness: Harness) -> None:
        create(harness, "g" * 200)
        seal(harness, "g" * 200)
        for job_id in callbacks(harness):
            assert len(job_id) < 50
        assert len(callbacks(harness)) == 2

    @rule("B2")
    def test_a_callback_is_a_job_like_any_other(self, harness: Harness) -> None:
        then = ChainedJob(
            CALLBACKS,
            "then",
            b"[1]",
            "lane",
            7,
            5_000_000,
            Policy(max_retries=0),
            {"trace": "t"},
            None,
            (LimitUse("l"),),
        )
        create(harness, then=then, on_end=None)
        seal(harness)
        job = job_of(harness, f"{GROUP}/then")
        assert job.available_at == harness.clock.now() + 5_000_000
        assert (job.spec.lane, job.spec.priority, job.spec.policy) == ("lane", 7, Policy(max_retries=0))
        assert (job.spec.headers, job.spec.rules) == ({"trace": "t"}, Rules(limits=(LimitUse("l"),)))

    @rule("B2", "I7")
    def test_a_callback_goes_to_a_queue_that_is_claimed(self, harness: Harness) -> None:
        acquire_one(harness, 1, queue="acquired")
        with pytest.raises(QueueRefused):
            create(harness, then=ChainedJob("acquired", "kind"))
        create(harness)
        with pytest.raises(QueueRefused):
            acquire_one(harness, 1, queue=CALLBACKS)

    @rule("B1", "O6")
    def test_groups_are_listed_page_by_page(self, harness: Harness) -> None:
        for number in range(5):
            create(harness, f"g{number}", then=None, on_end=None)
        seal(harness, "g1")
        assert [group.id for group in harness.store.groups(limit=3)] == ["g0", "g1", "g2"]
        assert [group.id for group in harness.store.groups(limit=3, after="g2")] == ["g3", "g4"]
        assert [group.id for group in harness.store.groups(open_only=True)] == ["g0", "g2", "g3", "g4"]

    @rule("B1", "O6")
    def test_jobs_are_listed_by_group(self, harness: Harness) -> None:
        with_members(harness, "a", "b")
        enqueue_one(harness, "other")
        assert [job.spec.id for job in every_job(harness, JobFilter(group=GROUP))] == ["a", "b"]
        assert every_job(harness, JobFilter(group="another")) == []
        claim_nothing(harness, CALLBACKS)
