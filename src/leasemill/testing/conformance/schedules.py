"""P: schedules, the records, and one tick at a time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from leasemill.errors import Invalid, QueueRefused
from leasemill.kernel.commands import (
    Enqueue,
    FireTicks,
    Followup,
    GetSchedule,
    JobFilter,
    ListSchedules,
    PauseSchedule,
    RemoveSchedule,
    ScheduleMoved,
    SetSchedule,
    TickFire,
    TickFired,
)
from leasemill.kernel.model import SECOND, JobSpec, JobState, Policy, Verb
from leasemill.kernel.schedule import (
    DAY_US,
    Missed,
    Overlap,
    Schedule,
    SkipReason,
    tick_id,
)
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.schedule_steps import (
    CALL,
    MINUTE,
    NOON,
    every_minute,
    fire,
    fire_next,
    fire_of,
    fire_until,
    move_back,
    reasons,
    schedule_of,
    set_far_ahead,
    set_schedule,
    verbs,
    wait_until,
)
from leasemill.testing.conformance.steps import (
    OFFSETS,
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    acquire_one,
    claim_nothing,
    claim_one,
    committed,
    every_job,
    expect,
    job_of,
    only,
    purge,
    spec,
    state_of,
)
from leasemill.testing.rules import rule


class Scheduling:
    # The record

    @rule("P1", "O8")
    def test_a_schedule_is_kept_as_it_was_set(self, harness: Harness) -> None:
        call = JobSpec(
            "", QUEUE, "kind", b'{"a": 1}', "lane", 5, None, 0, Policy(max_retries=1), headers={"trace": "1"}
        )
        wanted = every_minute(call=call, overlap=Overlap.ONE, missed=Missed.ALL, jitter_us=5, catch_up_us=6)
        made = set_schedule(harness, wanted)
        found = schedule_of(harness)
        assert (found.spec, found.revision, found.next_at, found.since_at) == (wanted, 1, NOON, NOON - 1)
        assert (found.last_at, found.pause, found.fired, found.skipped, found.skips) == (None, None, 0, {}, ())
        assert made == found
        (action,) = harness.store.actions()
        assert (action.verb, action.by, action.target, action.reason) == (
            Verb.SET_SCHEDULE,
            OPERATOR,
            "cron/tidy",
            WHY,
        )

    @rule("P1")
    def test_setting_the_same_content_again_changes_nothing(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        before = schedule_of(harness)
        assert set_schedule(harness, every_minute(), NOON + 10 * MINUTE) == before
        assert schedule_of(harness) == before
        assert verbs(harness) == [Verb.SET_SCHEDULE]

    @rule("P1")
    def test_other_content_raises_the_revision_and_leaves_the_next_tick(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        changed = set_schedule(harness, every_minute(overlap=Overlap.ALLOW), NOON + 10 * MINUTE)
        assert (changed.revision, changed.next_at) == (2, NOON)
        assert schedule_of(harness) == changed
        assert verbs(harness) == [Verb.SET_SCHEDULE] * 2

    @rule("P1")
    @pytest.mark.parametrize("fields", [{"expression": "*/1 * * * *"}, {"zone": "Europe/Berlin"}])
    def test_other_times_begin_after_now(self, harness: Harness, fields: dict[str, Any]) -> None:
        set_schedule(harness, every_minute())
        changed = set_schedule(harness, replace(every_minute(), **fields), NOON + 10 * MINUTE)
        assert (changed.revision, changed.next_at, changed.since_at) == (2, NOON + 11 * MINUTE, NOON - 1)

    @rule("P1", "P3")
    def test_other_times_never_begin_before_a_tick_that_was_decided_on(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        other = replace(every_minute(), expression="*/1 * * * *")
        moved = harness.store.run(SetSchedule(other, NOON, NOON - 5, OPERATOR, WHY))
        assert expect(ScheduleMoved, moved).schedule == schedule_of(harness)
        assert schedule_of(harness).revision == 1

    @rule("P1")
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"name": "no name"}, "not a name"),
            ({"expression": ""}, "expression"),
            ({"zone": "\n"}, "time zone"),
            ({"jitter_us": -1}, "jitter_us"),
            ({"catch_up_us": -1}, "catch_up_us"),
            ({"overlap": "never"}, "skip, one, queue, allow"),
            ({"missed": "never"}, "latest, all, skip"),
            ({"call": replace(CALL, id="mine")}, "leave them out"),
            ({"call": replace(CALL, delay_us=1)}, "leave them out"),
            ({"call": replace(CALL, payload=b"{")}, "payload"),
            ({"call": replace(CALL, queue="")}, "queue"),
            ({"call": replace(CALL, payload=b'"' + b"x" * 70_000 + b'"')}, "pass a reference"),
        ],
    )
    def test_a_malformed_schedule_is_refused(self, harness: Harness, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(Invalid, match=message):
            set_schedule(harness, replace(every_minute(), **fields))
        assert harness.store.run(ListSchedules(10)) == []

    @rule("P1")
    def test_the_first_tick_of_a_new_schedule_is_after_now(self, harness: Harness) -> None:
        with pytest.raises(Invalid, match="next_at"):
            harness.store.run(SetSchedule(every_minute(), NOON, NOON, OPERATOR, WHY))

    @rule("P1", "I7")
    def test_a_schedule_for_a_queue_that_is_used_with_acquire_is_refused(self, harness: Harness) -> None:
        acquire_one(harness, 0)
        with pytest.raises(QueueRefused):
            set_schedule(harness, every_minute(call=replace(CALL, queue=OFFSETS)))

    @rule("P1", "O6")
    def test_schedules_are_listed_by_name_a_page_at_a_time(self, harness: Harness) -> None:
        for name in ("c", "a", "b"):
            set_schedule(harness, every_minute(name))
        page = harness.store.run(ListSchedules(2))
        assert [one.spec.name for one in page] == ["a", "b"]
        assert [one.spec.name for one in harness.store.run(ListSchedules(2, "b"))] == ["c"]
        assert harness.store.run(GetSchedule("d")) is None

    @rule("P1", "O8")
    def test_a_removed_schedule_is_gone_and_its_jobs_stay(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        (job_id,) = fire_next(harness).job_ids
        removed = harness.store.run(RemoveSchedule("tidy", OPERATOR, WHY))
        assert expect(Schedule, removed).fired == 1
        assert harness.store.run(GetSchedule("tidy")) is None
        assert harness.store.run(RemoveSchedule("tidy", OPERATOR, WHY)) is None
        assert state_of(harness, job_id) is JobState.READY
        assert verbs(harness) == [Verb.SET_SCHEDULE, Verb.REMOVE_SCHEDULE]

    # Firing

    @rule("P2", "P4")
    def test_a_tick_makes_the_job_it_was_set_for(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        assert fire_next(harness) == TickFired("tidy", ("cron/tidy/2030-03-17T18:00:00Z",), (), NOON + MINUTE)
        job = only(every_job(harness))
        assert job.spec == replace(CALL, id=tick_id("tidy", NOON))
        found = schedule_of(harness)
        assert (found.last_at, found.next_at, found.fired, found.last_job_id) == (NOON, NOON + MINUTE, 1, job.spec.id)
        lease = claim_one(harness)
        assert lease.job == job.spec
        acked(harness, lease)

    @rule("P2")
    def test_the_job_is_due_at_once_however_late_its_tick_is_fired(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_until(harness, NOON, NOON + 10 * SECOND)
        assert only(every_job(harness)).available_at == harness.clock.now()

    @rule("P2", "P3")
    def test_a_tick_is_fired_once(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fired = fire_of(schedule_of(harness))
        expect(TickFired, fire(harness, fired))
        after = schedule_of(harness)
        assert fire(harness, fired) == ScheduleMoved("tidy", after)
        assert schedule_of(harness) == after
        assert len(every_job(harness)) == 1

    @rule("P2", "L8")
    @pytest.mark.parametrize("ahead_us", [0, 1, MINUTE, 365 * DAY_US])
    def test_a_tick_is_not_fired_before_its_time_whatever_clock_the_caller_has(
        self, harness: Harness, ahead_us: int
    ) -> None:
        before = set_schedule(harness, every_minute())
        early = fire_of(before, until=NOON - 1 + ahead_us, most=20)
        assert harness.store.run(FireTicks([early], NOON - 1 + ahead_us)) == [ScheduleMoved("tidy", before)]
        assert schedule_of(harness) == before
        assert every_job(harness) == []

    @rule("P2", "L8")
    @pytest.mark.parametrize("behind_us", [1, MINUTE, 365 * DAY_US])
    def test_a_tick_that_is_due_is_fired_by_a_caller_whose_clock_is_behind(
        self, harness: Harness, behind_us: int
    ) -> None:
        before = set_schedule(harness, every_minute())
        wait_until(harness, NOON)
        (outcome,) = harness.store.run(FireTicks([fire_of(before)], NOON - behind_us))
        assert expect(TickFired, outcome).job_ids == (tick_id("tidy", NOON),)

    @rule("P5", "L8")
    def test_how_old_a_tick_is_is_asked_of_the_stores_clock(self, harness: Harness) -> None:
        before = set_schedule(harness, every_minute(missed=Missed.SKIP))
        wait_until(harness, NOON + 60 * SECOND)
        (outcome,) = harness.store.run(FireTicks([fire_of(before)], NOON))
        assert reasons(expect(TickFired, outcome)) == [SkipReason.MISSED]

    # A next tick that lies too far ahead

    @rule("P10", "O8")
    def test_a_next_tick_that_is_far_ahead_is_moved_back(self, harness: Harness) -> None:
        """As a version left it that believed a worker's clock: a year of ticks is decided on."""
        far = set_far_ahead(harness)
        wait_until(harness, NOON)
        moved = expect(Schedule, harness.store.run(move_back(far, NOON + MINUTE)))
        assert (moved.next_at, moved.revision, moved.last_at) == (NOON + MINUTE, far.revision + 1, None)
        assert (moved.fired, moved.skipped, moved.spec) == (far.fired, far.skipped, far.spec), "its counts stay"
        assert schedule_of(harness) == moved
        assert harness.store.actions()[0].reason == WHY
        assert fire_next(harness).job_ids == (tick_id("tidy", NOON + MINUTE),)
        assert schedule_of(harness).last_at == NOON + MINUTE

    @rule("P10", "P2")
    def test_whoever_computed_ticks_before_the_move_is_not_heard(self, harness: Harness) -> None:
        far = set_far_ahead(harness)
        moved = expect(Schedule, harness.store.run(move_back(far, NOON + MINUTE)))
        assert harness.store.run(move_back(far, NOON + MINUTE)) == ScheduleMoved("tidy", moved)
        assert fire(harness, fire_of(far)) == ScheduleMoved("tidy", moved)

    @rule("P10", "P3")
    @pytest.mark.parametrize("ahead_us", [MINUTE, DAY_US])
    def test_a_next_tick_within_a_day_is_never_moved_back(self, harness: Harness, ahead_us: int) -> None:
        """A clock that was set back by less fires nothing again."""
        set_schedule(harness, every_minute(missed=Missed.LATEST))
        known = expect(TickFired, fire(harness, fire_of(schedule_of(harness))))
        harness.clock.advance(us=known.next_at - ahead_us - harness.clock.now())
        before = schedule_of(harness)
        answer = harness.store.run(move_back(before, known.next_at - ahead_us + 1))
        assert answer == ScheduleMoved("tidy", before)
        assert schedule_of(harness) == before

    @rule("P10", "P3")
    def test_a_next_tick_is_not_moved_to_a_time_that_has_passed(self, harness: Harness) -> None:
        far = set_far_ahead(harness)
        wait_until(harness, NOON + MINUTE)
        assert harness.store.run(move_back(far, NOON + MINUTE)) == ScheduleMoved("tidy", far)

    @rule("P10")
    def test_a_move_that_is_none_is_refused(self, harness: Harness) -> None:
        far = set_far_ahead(harness)
        with pytest.raises(Invalid, match="moves"):
            harness.store.run(move_back(far, far.next_at))

    @rule("P10")
    def test_a_schedule_that_was_changed_or_removed_meanwhile_is_not_moved(self, harness: Harness) -> None:
        far = set_far_ahead(harness)
        command = move_back(far, NOON + MINUTE)
        changed = set_schedule(harness, replace(far.spec, missed=Missed.ALL))
        assert harness.store.run(command) == ScheduleMoved("tidy", changed)
        harness.store.run(RemoveSchedule("tidy", OPERATOR, WHY))
        assert harness.store.run(command) == ScheduleMoved("tidy", None)
        assert harness.store.run(GetSchedule("tidy")) is None

    @rule("P2")
    def test_a_tick_of_another_revision_is_not_fired(self, harness: Harness) -> None:
        fired = fire_of(set_schedule(harness, every_minute()))
        changed = set_schedule(harness, every_minute(missed=Missed.ALL))
        assert fire(harness, fired) == ScheduleMoved("tidy", changed)

    @rule("P2")
    def test_a_tick_of_an_unknown_schedule_is_not_fired(self, harness: Harness) -> None:
        unknown = TickFire("tidy", 1, NOON, (NOON,), NOON + MINUTE)
        assert fire(harness, unknown) == ScheduleMoved("tidy", None)

    @rule("P3")
    def test_whoever_computes_the_next_tick_differently_is_heard_once(self, harness: Harness) -> None:
        fired = fire_of(set_schedule(harness, every_minute()))
        expect(TickFired, fire(harness, replace(fired, next_at=NOON + 30 * SECOND)))
        expect(ScheduleMoved, fire(harness, fired))
        assert schedule_of(harness).next_at == NOON + 30 * SECOND

    @rule("P3")
    @pytest.mark.parametrize(
        "wrong",
        [
            {"next_at": NOON},
            {"next_at": NOON - 1},
            {"due": ()},
            {"due": (NOON - MINUTE, NOON)},
            {"due": (NOON, NOON)},
            {"due": (NOON + 1,)},
            {"passed": 1},
            {"passed": -1},
        ],
    )
    def test_ticks_that_do_not_rise_are_refused(self, harness: Harness, wrong: dict[str, Any]) -> None:
        before = set_schedule(harness, every_minute())
        with pytest.raises(Invalid):
            fire(harness, replace(fire_of(before), **wrong), NOON + MINUTE)
        assert schedule_of(harness) == before

    @rule("P2", "E6")
    def test_a_batch_fires_each_of_its_schedules(self, harness: Harness) -> None:
        fires = [fire_of(set_schedule(harness, every_minute(name))) for name in ("a", "b")]
        wait_until(harness, NOON)
        outcomes = harness.store.run(FireTicks([*fires, fires[0]], NOON))
        assert [type(outcome) for outcome in outcomes] == [TickFired, TickFired, ScheduleMoved]
        assert len(every_job(harness)) == 2

    # Ids

    @rule("P4")
    def test_an_enqueue_with_a_schedules_id_is_refused(self, harness: Harness) -> None:
        with pytest.raises(Invalid, match="use another"):
            harness.store.run(Enqueue([spec("cron/tidy/2030-03-17T18:00:00Z")]))

    @rule("P4", "I6")
    def test_a_ticks_job_may_have_follow_ups(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        lease = claim_one(harness)
        done = committed(harness, lease, followups=[Followup(QUEUE, "kind")])
        assert done.followup_ids == (f"{lease.job.id}/0",)

    @rule("P4")
    def test_a_known_job_counts_as_fired_and_the_schedule_goes_on(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        first = fire_next(harness)
        acked(harness, claim_one(harness))
        harness.store.run(RemoveSchedule("tidy", OPERATOR, WHY))
        set_schedule(harness, every_minute(call=replace(CALL, payload=b"{}")))
        again = fire_next(harness)
        assert (again.job_ids, again.skips) == (first.job_ids, ())
        assert job_of(harness, first.job_ids[0]).spec.payload == CALL.payload
        assert schedule_of(harness).next_at == NOON + MINUTE
        claim_nothing(harness)
        assert len(fire_next(harness).job_ids) == 1

    @rule("P4", "P3")
    def test_a_tick_is_fired_once_although_its_job_is_forgotten(self, harness: Harness) -> None:
        fired = fire_of(set_schedule(harness, every_minute()))
        expect(TickFired, fire(harness, fired))
        acked(harness, claim_one(harness))
        purge(harness, tick_id("tidy", NOON))
        expect(ScheduleMoved, fire(harness, fired))
        assert every_job(harness) == []

    @rule("P1", "E1")
    def test_schedules_are_there_when_the_store_is_opened_again(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        fire_next(harness)
        harness.store.run(PauseSchedule("tidy", OPERATOR, WHY))
        before = schedule_of(harness)
        jobs = harness.store.jobs(JobFilter()).jobs
        harness.reopen()
        assert schedule_of(harness) == before
        assert harness.store.jobs(JobFilter()).jobs == jobs
