"""Pause and resume a schedule, and run it now."""

from __future__ import annotations

from leasemill.api import schedule_commands
from leasemill.dashboard.page_types import Done, Given, OperatorAction, PageContext, Question
from leasemill.errors import NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.schedule import Schedule, SkipReason
from leasemill.operator.missing_job import local
from leasemill.operator.wording import counted


def _schedule(context: PageContext) -> Schedule:
    name = context.asked("name") or ""
    found = context.store.run(c.GetSchedule(name))
    if found is None:
        raise NotFound(f"there is no schedule {name!r}: it was never set, or has been removed")
    return found


def _ask_pause(context: PageContext) -> Question:
    schedule = _schedule(context)
    sentences = [
        "Ticks that go by until it is resumed make no job, then or later.",
        f"Its next tick is {local(schedule, schedule.next_at)}. Jobs it has made go on.",
    ]
    return Question(f"Pause schedule {schedule.spec.name}", sentences, "Pause", is_possible=schedule.pause is None)


def _pause(context: PageContext, given: Given) -> Done:
    name = _schedule(context).spec.name
    schedule_commands.pause_schedule(context.store, name, by=given.by, reason=given.reason)
    return Done(f"Schedule {name} paused.")


def _ask_resume(context: PageContext) -> Question:
    schedule = _schedule(context)
    sentences = ["Its next tick is the first after now. Ticks that went by meanwhile make no job."]
    if schedule.pause is not None:
        sentences.append(f"{schedule.pause.by} paused it: {schedule.pause.reason}")
    is_possible = schedule.pause is not None
    return Question(f"Resume schedule {schedule.spec.name}", sentences, "Resume", is_possible=is_possible)


def _resume(context: PageContext, given: Given) -> Done:
    before = _schedule(context)
    resumed = schedule_commands.resume_schedule(context.store, before.spec.name, by=given.by, reason=given.reason)
    over = resumed.skipped.get(SkipReason.PAUSED, 0) - before.skipped.get(SkipReason.PAUSED, 0)
    passed = f" {counted(over, 'tick')} went by while it was paused." if over > 0 else ""
    return Done(f"Schedule {before.spec.name} resumed: next tick {local(resumed, resumed.next_at)}.{passed}")


def _ask_fire(context: PageContext) -> Question:
    schedule = _schedule(context)
    spec = schedule.spec
    sentences = [
        f"A {spec.call.kind} job is enqueued in queue {spec.call.queue} at once.",
        f"Its next tick does not change: {local(schedule, schedule.next_at)}.",
    ]
    if schedule.pause is not None:
        sentences.append("It stays paused.")
    return Question(f"Run schedule {spec.name} now", sentences, "Run now")


def _fire(context: PageContext, given: Given) -> Done:
    name = _schedule(context).spec.name
    outcome = schedule_commands.fire_now(context.store, name, by=given.by, reason=given.reason)
    if isinstance(outcome, c.Enqueued):
        return Done(f"Schedule {name} made job {outcome.job_id}.")
    return Done(f"Schedule {name} made no job: {outcome.job_id} holds its unique key.")


ACTIONS = (
    OperatorAction("pause-schedule", _ask_pause, _pause),
    OperatorAction("resume-schedule", _ask_resume, _resume),
    OperatorAction("run-schedule", _ask_fire, _fire),
)
