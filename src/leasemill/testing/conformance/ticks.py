"""P: what becomes of ticks: missed, overlapping, paused, by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leasemill.errors import Invalid
from leasemill.kernel.commands import (
    Backfill,
    DueSchedules,
    Duplicate,
    Enqueued,
    FireNow,
    NextTick,
    PauseSchedule,
    ResumeSchedule,
    ScheduleMoved,
    TickFired,
)
from leasemill.kernel.model import SECOND, ChainedJob, Rules, UniqueKey, Verb
from leasemill.kernel.schedule import (
    DAY_US,
    Missed,
    Overlap,
    Schedule,
    Skip,
    SkipReason,
    jitter_us,
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
    reasons,
    schedule_of,
    set_schedule,
    verbs,
)
from leasemill.testing.conformance.steps import (
    OFFSETS,
    OPERATOR,
    QUEUE,
    WHY,
    acked,
    acquire_one,
    claim,
    claim_nothing,
    claim_one,
    enqueue_one,
    every_job,
    expect,
    failed_for_good,
    job_of,
    nacked,
    only,
)
from leasemill.testing.rules import rule


class Ticking:
    # Missed

    @rule("P5")
    def test_latest_fires_the_last_tick_and_counts_the_others(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        outcome = fire_until(harness, NOON + 3 * MINUTE)
        assert outcome.job_ids == (tick_id("tidy", NOON + 3 * MINUTE),)
        assert outcome.skips == tuple(Skip(NOON + n * MINUTE, SkipReason.MISSED) for n in range(3))
        assert schedule_of(harness).skipped == {SkipReason.MISSED: 3}

    @rule("P5")
    def test_latest_after_three_days_counts_what_is_not_named(self, harness: Harness) -> None:
        schedule = set_schedule(harness, every_minute())
        until = NOON + 3 * DAY_US
        outcome = expect(TickFired, fire(harness, fire_of(schedule, until=until, most=20)))
        assert outcome.job_ids == (tick_id("tidy", until),)
        found = schedule_of(harness)
        assert (found.fired, found.skipped) == (1, {SkipReason.MISSED: 3 * 1_440})
        assert (len(found.skips), found.skips[-1].tick_at) == (19, until - MINUTE)
        assert found.next_at == until + MINUTE

    @rule("P5")
    def test_all_fires_each_tick_that_is_not_too_old(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(missed=Missed.ALL, overlap=Overlap.ALLOW, catch_up_us=2 * MINUTE))
        outcome = fire_until(harness, NOON + 4 * MINUTE)
        assert outcome.job_ids == tuple(tick_id("tidy", NOON + n * MINUTE) for n in (2, 3, 4))
        assert reasons(outcome) == [SkipReason.MISSED] * 2
        assert [lease.job.id for lease in claim(harness, 10)] == list(outcome.job_ids)

    @rule("P5")
    def test_more_than_1000_ticks_at_once_are_refused(self, harness: Harness) -> None:
        schedule = set_schedule(harness, every_minute(missed=Missed.ALL))
        with pytest.raises(Invalid, match="1,000"):
            fire(harness, fire_of(schedule, until=NOON + 1_000 * MINUTE, most=1_001))

    @rule("P5")
    @pytest.mark.parametrize(("late_us", "fires"), [(60 * SECOND - 1, True), (60 * SECOND, False)])
    def test_skip_fires_the_last_tick_if_it_is_fresh(self, harness: Harness, late_us: int, fires: bool) -> None:
        set_schedule(harness, every_minute(missed=Missed.SKIP))
        last = NOON + 2 * MINUTE
        outcome = fire_until(harness, last, last + late_us)
        assert outcome.job_ids == ((tick_id("tidy", last),) if fires else ())
        assert reasons(outcome) == [SkipReason.MISSED] * (2 if fires else 3)

    @rule("P5", "P2", "O8")
    def test_a_paused_schedule_fires_nothing_and_its_ticks_are_over(self, harness: Harness) -> None:
        before = set_schedule(harness, every_minute())
        paused = expect(Schedule, harness.store.run(PauseSchedule("tidy", OPERATOR, WHY)))
        assert paused.pause is not None and (paused.pause.by, paused.pause.reason) == (OPERATOR, WHY)
        expect(ScheduleMoved, fire(harness, fire_of(before)))
        assert harness.store.run(NextTick()) is None
        over = tuple(NOON + n * MINUTE for n in range(3))
        resume = ResumeSchedule("tidy", NOON, over, NOON + 3 * MINUTE, OPERATOR, WHY)
        resumed = expect(Schedule, harness.store.run(resume))
        assert schedule_of(harness) == resumed
        assert (resumed.pause, resumed.next_at, resumed.skipped) == (None, NOON + 3 * MINUTE, {SkipReason.PAUSED: 3})
        assert [skip.reason for skip in resumed.skips] == [SkipReason.PAUSED] * 3
        assert every_job(harness) == []
        assert len(fire_next(harness).job_ids) == 1
        assert verbs(harness) == [Verb.SET_SCHEDULE, Verb.PAUSE_SCHEDULE, Verb.RESUME_SCHEDULE]

    @rule("P5")
    def test_pause_and_resume_of_what_is_so_already_change_nothing(self, harness: Harness) -> None:
        before = set_schedule(harness, every_minute())
        assert harness.store.run(ResumeSchedule("tidy", NOON, (), NOON, OPERATOR, WHY)) == before
        paused = harness.store.run(PauseSchedule("tidy", OPERATOR, WHY))
        assert harness.store.run(PauseSchedule("tidy", "bob", "again")) == paused
        resumed = harness.store.run(ResumeSchedule("tidy", NOON, (), NOON, OPERATOR, WHY))
        assert resumed == before
        assert harness.store.run(PauseSchedule("other", OPERATOR, WHY)) is None
        assert harness.store.run(ResumeSchedule("other", NOON, (), NOON, OPERATOR, WHY)) is None

    @rule("P3", "P5")
    def test_a_resume_that_knows_another_next_tick_changes_nothing(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        paused = harness.store.run(PauseSchedule("tidy", OPERATOR, WHY))
        moved = harness.store.run(ResumeSchedule("tidy", NOON, (NOON,), NOON + MINUTE, OPERATOR, WHY))
        assert moved == ScheduleMoved("tidy", expect(Schedule, paused))

    # Overlap

    @rule("P6")
    def test_skip_makes_no_job_while_the_one_before_has_not_ended(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        (first,) = fire_next(harness).job_ids
        assert fire_next(harness).skips == (Skip(NOON + MINUTE, SkipReason.OVERLAP, first),)  # READY
        lease = claim_one(harness)
        assert reasons(fire_next(harness)) == [SkipReason.OVERLAP]  # LEASED
        nacked(harness, lease)
        assert reasons(fire_next(harness)) == [SkipReason.OVERLAP]  # waits for its retry
        harness.clock.advance(s=60)
        acked(harness, claim_one(harness))
        assert fire_next(harness).skips == ()
        found = schedule_of(harness)
        assert (found.fired, found.skipped) == (2, {SkipReason.OVERLAP: 3})

    @rule("P6")
    def test_a_job_that_failed_for_good_is_in_nobodys_way(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        failed_for_good(harness, claim_one(harness))
        assert len(fire_next(harness).job_ids) == 1

    @rule("P6")
    def test_one_makes_one_job_that_waits_while_another_runs(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(overlap=Overlap.ONE))
        fire_next(harness)
        assert reasons(fire_next(harness)) == [SkipReason.OVERLAP]  # one waits
        running = claim_one(harness)
        (waits,) = fire_next(harness).job_ids
        claim_nothing(harness)  # it waits for the one that runs
        assert reasons(fire_next(harness)) == [SkipReason.OVERLAP]
        acked(harness, running)
        assert claim_one(harness).job.id == waits
        assert job_of(harness, waits).spec.lane == "cron/tidy"

    @rule("P6", "N2")
    def test_queue_makes_every_job_and_runs_them_in_order(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(overlap=Overlap.QUEUE, missed=Missed.ALL))
        made = fire_until(harness, NOON + 2 * MINUTE).job_ids
        for job_id in made:
            lease = claim_one(harness)
            assert lease.job.id == job_id
            claim_nothing(harness)
            acked(harness, lease)

    @rule("P6")
    def test_a_call_with_a_lane_keeps_it(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(overlap=Overlap.QUEUE, call=replace(CALL, lane="mine")))
        fire_next(harness)
        assert only(every_job(harness)).spec.lane == "mine"

    @rule("P6")
    def test_allow_does_not_look(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(overlap=Overlap.ALLOW))
        made = [*fire_next(harness).job_ids, *fire_next(harness).job_ids]
        assert [lease.job.id for lease in claim(harness, 10)] == made

    @rule("P5", "P6")
    def test_all_with_skip_makes_one_of_them(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(missed=Missed.ALL))
        outcome = fire_until(harness, NOON + 2 * MINUTE)
        assert (outcome.job_ids, reasons(outcome)) == ((tick_id("tidy", NOON),), [SkipReason.OVERLAP] * 2)

    @rule("P6")
    def test_the_latest_20_skipped_ticks_are_kept(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        for _ in range(25):
            fire_next(harness)
        found = schedule_of(harness)
        assert found.skipped == {SkipReason.OVERLAP: 25}
        assert [skip.tick_at for skip in found.skips] == [NOON + n * MINUTE for n in range(6, 26)]

    @rule("P6", "I7")
    def test_a_schedule_whose_queue_is_used_with_acquire_meanwhile_goes_on(self, harness: Harness) -> None:
        set_schedule(harness, every_minute(call=replace(CALL, queue=OFFSETS)))
        acquire_one(harness, 0)
        assert reasons(fire_next(harness)) == [SkipReason.REFUSED]
        assert schedule_of(harness).next_at == NOON + MINUTE

    @rule("P6", "U1")
    def test_a_tick_whose_job_is_merged_is_skipped_and_the_schedule_goes_on(self, harness: Harness) -> None:
        unique = replace(CALL, rules=Rules(unique=UniqueKey("crm")))
        set_schedule(harness, every_minute(overlap=Overlap.ALLOW, call=unique))
        enqueue_one(harness, "mine", rules=Rules(unique=UniqueKey("crm")))
        assert fire_next(harness).skips == (Skip(NOON, SkipReason.UNIQUE, "mine"),)
        acked(harness, claim_one(harness))
        (job_id,) = fire_next(harness).job_ids
        assert reasons(fire_next(harness)) == [SkipReason.UNIQUE]
        assert claim_one(harness).job.id == job_id
        found = schedule_of(harness)
        assert (found.fired, found.skipped) == (1, {SkipReason.UNIQUE: 2})

    @rule("P5", "P6", "U5")
    def test_of_several_ticks_with_one_key_the_first_makes_a_job(self, harness: Harness) -> None:
        unique = replace(CALL, rules=Rules(unique=UniqueKey("crm")))
        set_schedule(harness, every_minute(overlap=Overlap.ALLOW, missed=Missed.ALL, call=unique))
        outcome = fire_until(harness, NOON + 2 * MINUTE)
        assert outcome.job_ids == (tick_id("tidy", NOON),)
        assert reasons(outcome) == [SkipReason.UNIQUE] * 2

    @rule("P2", "B6")
    def test_a_ticks_job_may_begin_a_chain(self, harness: Harness) -> None:
        chained = replace(CALL, rules=Rules(chain=(ChainedJob(QUEUE, "next"),)))
        set_schedule(harness, every_minute(call=chained))
        (job_id,) = fire_next(harness).job_ids
        acked(harness, claim_one(harness))
        lease = claim_one(harness)
        assert (lease.job.id, lease.job.kind) == (f"{job_id}/then", "next")

    # By hand, and afterwards

    @rule("P4", "O8")
    def test_a_schedule_is_fired_by_hand_and_its_next_tick_stays(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        command = FireNow("tidy", NOON - 5, OPERATOR, WHY)
        job_id = "cron/tidy/2030-03-17T17:59:59.999995Z"
        assert harness.store.run(command) == Enqueued(job_id)
        assert harness.store.run(command) == Duplicate(job_id)
        found = schedule_of(harness)
        assert (found.fired, found.next_at, found.last_at, found.last_job_id) == (1, NOON, None, job_id)
        assert reasons(fire_next(harness)) == [SkipReason.OVERLAP]
        assert verbs(harness) == [Verb.SET_SCHEDULE, Verb.FIRE]
        assert harness.store.run(FireNow("other", NOON, OPERATOR, WHY)) is None

    @rule("P2")
    def test_a_paused_schedule_can_be_fired_by_hand(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        harness.store.run(PauseSchedule("tidy", OPERATOR, WHY))
        expect(Enqueued, harness.store.run(FireNow("tidy", NOON, OPERATOR, WHY)))

    @rule("P4", "O8")
    def test_ticks_that_are_over_are_backfilled_once(self, harness: Harness) -> None:
        set_schedule(harness, every_minute())
        fire_next(harness)
        ticks = (NOON - 2 * MINUTE, NOON - MINUTE, NOON)
        first, second, known = (tick_id("tidy", tick) for tick in ticks)
        command = Backfill("tidy", ticks, OPERATOR, WHY)
        assert harness.store.run(command) == [Enqueued(first), Enqueued(second), Duplicate(known)]
        assert harness.store.run(command) == [Duplicate(first), Duplicate(second), Duplicate(known)]
        found = schedule_of(harness)
        assert (found.fired, found.next_at, found.last_job_id) == (3, NOON + MINUTE, known)
        assert verbs(harness) == [Verb.SET_SCHEDULE, Verb.BACKFILL]

    @rule("P3")
    def test_ticks_that_are_to_come_are_not_backfilled(self, harness: Harness) -> None:
        before = set_schedule(harness, every_minute())
        outcome = harness.store.run(Backfill("tidy", (NOON - MINUTE, NOON), OPERATOR, WHY))
        assert outcome == ScheduleMoved("tidy", before)
        assert harness.store.run(Backfill("other", (NOON,), OPERATOR, WHY)) == ScheduleMoved("other", None)
        assert every_job(harness) == []

    # Jitter, and when to wake up

    @rule("P8")
    def test_jitter_delays_a_ticks_job_by_less_than_the_time_until_the_next(self, harness: Harness) -> None:
        wanted = every_minute(jitter_us=3_600 * SECOND, overlap=Overlap.ALLOW)
        set_schedule(harness, wanted)
        delays = []
        for tick in range(NOON, NOON + 20 * MINUTE, MINUTE):
            (job_id,) = fire_next(harness).job_ids
            job = job_of(harness, job_id)
            delays.append(job.available_at - harness.clock.now())
            assert delays[-1] == jitter_us(wanted, tick, tick + MINUTE)
        assert all(0 <= delay < MINUTE for delay in delays)
        assert len(set(delays)) == 20

    @rule("P9")
    def test_the_earliest_tick_and_what_is_due_by_then_are_known(self, harness: Harness) -> None:
        assert harness.store.run(NextTick()) is None
        for minutes, name in enumerate(("late", "early", "never")):
            set_schedule(harness, every_minute(name), NOON + (2 - minutes) * MINUTE)
        harness.store.run(PauseSchedule("never", OPERATOR, WHY))
        assert harness.store.run(NextTick()) == NOON + 2 * MINUTE
        assert harness.store.run(DueSchedules(NOON + MINUTE, 10)) == []
        due = harness.store.run(DueSchedules(NOON + 3 * MINUTE, 10))
        assert [one.spec.name for one in due] == ["early", "late"]
        assert [one.spec.name for one in harness.store.run(DueSchedules(NOON + 3 * MINUTE, 1))] == ["early"]
        fire_next(harness, "early")
        assert harness.store.run(NextTick()) == NOON + 3 * MINUTE
