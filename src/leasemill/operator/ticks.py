"""Why a tick of a schedule made no job, in sentences. Pure but for the zone database."""

from __future__ import annotations

from leasemill.api.cron import instant_of, micros, next_tick_after, parse_zone
from leasemill.api.scheduling import tick_of
from leasemill.errors import Invalid
from leasemill.kernel.schedule import SKIPS_KEPT, Overlap, Schedule, Skip, SkipReason
from leasemill.operator.explain import Explanation, Situation
from leasemill.operator.times import local_instant, span


def explain_tick(job_id: str, schedule: Schedule | None, now: int) -> Explanation | None:
    """None: the id is not that of a tick."""
    found = tick_of(job_id)
    if found is None:
        return None
    name, tick = found
    if schedule is None:
        sentences = [f"There is no job {job_id!r}, and no schedule {name!r}: it was never set, or has been removed."]
        return Explanation(job_id, None, Situation.NO_TICK, sentences, [], ["leasemill actions --target cron/" + name])
    why, advice = _why(schedule, micros(tick), now)
    headline = f"There is no job {job_id!r}, for the tick {local(schedule, micros(tick))} of schedule {name!r}."
    return Explanation(job_id, None, Situation.NO_TICK, [headline, why], [], advice)


def local(schedule: Schedule, at: int | None) -> str:
    """A time in the schedule's zone, with its offset."""
    return "-" if at is None else local_instant(instant_of(at), schedule.spec.zone)


def _why(schedule: Schedule, tick: int, now: int) -> tuple[str, list[str]]:
    spec, skips = schedule.spec, {skip.tick_at: skip for skip in schedule.skips}
    show = f"leasemill cron show {spec.name}"
    if tick in skips:
        return _skipped(schedule, skips[tick])
    if (other := _other_tick(schedule, tick)) is not None:
        return (
            f"It is not a tick of {spec.expression!r} ({spec.zone}): the first after it is {local(schedule, other)}.",
            [],
        )
    if tick >= schedule.next_at:
        if schedule.pause is not None:
            pause = schedule.pause
            why = f"The schedule is paused, by {pause.by} ({pause.reason}): ticks that go by meanwhile make no job."
            return why, [f"leasemill cron resume {spec.name} --reason …"]
        if tick <= now:
            why = f"It has been due for {span(now - tick)}, and no worker has fired it: is one running?"
            return why, ["leasemill workers"]
        return f"It is not due yet: the next tick is {local(schedule, schedule.next_at)}.", []
    if tick < schedule.since_at:
        why = f"The schedule was first set at {local(schedule, schedule.since_at)}: ticks before that make no job."
        return why, [_backfill(schedule, tick)]
    why = (
        "It is over. Its job has been forgotten, by retention or purge, or it made none: the latest "
        f"{SKIPS_KEPT} ticks that made none are kept, and it is not among them."
    )
    return why, [show]


def _skipped(schedule: Schedule, skip: Skip) -> tuple[str, list[str]]:
    spec = schedule.spec
    advice = [_backfill(schedule, skip.tick_at)]
    match skip.reason:
        case SkipReason.OVERLAP:
            what = "waited" if spec.overlap is Overlap.ONE else "had not ended"
            why = f"It was skipped because job {skip.job_id!r} {what} (overlap {spec.overlap.value})."
            return why, [f"leasemill jobs explain {skip.job_id}", *advice]
        case SkipReason.MISSED:
            return f"It was missed: no worker ran when it was due (missed {spec.missed.value}).", advice
        case SkipReason.PAUSED:
            return "It went by while the schedule was paused.", advice
        case SkipReason.UNIQUE:
            return f"Its job was merged with {skip.job_id!r}, which held its unique key.", advice
        case SkipReason.REFUSED:
            return f"Queue {spec.call.queue!r}, or one that its chain leads to, is used with acquire.", []


def _backfill(schedule: Schedule, tick: int) -> str:
    at = instant_of(tick).isoformat().replace("+00:00", "Z")
    return f"leasemill cron backfill {schedule.spec.name} --from {at} --to {at} --reason …"


def _other_tick(schedule: Schedule, tick: int) -> int | None:
    """The tick after this time, if it is none itself. A hand-fired job has any time."""
    spec = schedule.spec
    try:
        parse_zone(spec.zone)
        first = next_tick_after(spec.expression, spec.zone, tick - 1)
    except Invalid:
        return None  # it cannot be known here
    return None if first == tick else first
