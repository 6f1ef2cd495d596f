"""Explains why a job is missing: the callback of an unfinished group, a later job of a chain, a skipped tick."""

from __future__ import annotations

from shlex import quote

from leasemill.api.cron import instant_of, micros, next_tick_after, parse_zone
from leasemill.api.schedule_commands import tick_of
from leasemill.errors import Invalid
from leasemill.kernel.commands import GetSchedule, GroupView
from leasemill.kernel.model import REDRIVEN_STATES, UNSUCCESSFUL_STATES, ChainedJob, Job, JobState
from leasemill.kernel.schedule import SKIPS_KEPT, Overlap, Schedule, Skip, SkipReason
from leasemill.kernel.transitions.groups import then_id
from leasemill.operator.explain import Explanation, Situation
from leasemill.operator.facts import callback_name, stem_of
from leasemill.operator.relations import progress
from leasemill.operator.wording import counted, local_instant, span
from leasemill.store.base import Store


def explain_missing(store: Store, job_id: str) -> Explanation | None:
    """Return what a job that does not exist waits for; None if nothing that is recorded would enqueue it."""
    if (tick := tick_of(job_id)) is not None:
        return explain_tick(job_id, store.run(GetSchedule(tick[0])), store.time())
    stem = stem_of(job_id)
    if stem is None:
        return None
    group = store.group(stem)
    if group is not None and (name := callback_name(job_id, group)) is not None:
        return _callback(job_id, name, group)
    before = _before(store, job_id)
    return None if before is None else _chained(job_id, *before)


# Callbacks ------------------------------------------------------------------------------------------------------


def _callback(job_id: str, name: str, group: GroupView) -> Explanation:
    template = group.then if name == "then" else group.on_end
    assert template is not None
    is_then = name == "then"
    unsuccessful = group.failed + group.dead + group.cancelled
    advice: list[str] = []
    if group.sealed_at is None:
        why = "It waits for the group to be sealed: until then more members may come."
        advice = [f"leasemill groups seal {quote(group.id)} --reason …"]
    elif is_then and unsuccessful:
        why = (
            f"It is enqueued when all {counted(group.total, 'member')} have succeeded: {unsuccessful:,} ended without "
            f"success, {group.unfinished:,} {'is' if group.unfinished == 1 else 'are'} unfinished."
        )
        advice = _redrive_advice(group)
    elif not group.is_over:
        why = f"It waits for {group.unfinished:,} of {counted(group.total, 'member')}."
        advice = [f"leasemill groups show {quote(group.id)}"]
    else:
        why = "It was enqueued when the group ended; retention or purge has removed it."
    is_due = group.is_over and not (is_then and unsuccessful)
    state = "does not exist" if is_due else "has not been enqueued yet"
    headline = f"{_named(job_id, template)} {state}: it is the `{name}` callback of group {group.id!r}."
    stands = f"The group has {progress(group)}."
    return Explanation(job_id, None, Situation.WAITS_FOR_GROUP, [headline, why, stands], [], advice)


def _redrive_advice(group: GroupView) -> list[str]:
    """Return how to let unsuccessful members run again: cancelled ones by their ids only (O2)."""
    advice = [f"leasemill groups redrive {quote(group.id)} --reason …"] if group.failed or group.dead else []
    if group.cancelled:
        advice += [
            f"leasemill jobs list --group {quote(group.id)} --state cancelled",
            "leasemill jobs redrive JOB_ID… --include-cancelled --reason …",
        ]
    return advice


# Chains ---------------------------------------------------------------------------------------------------------


def _before(store: Store, job_id: str) -> tuple[Job, int] | None:
    """The nearest job before this one in a chain, and how many places lie between."""
    stem, places = stem_of(job_id), 1
    while stem is not None and then_id(stem) == job_id:
        job = store.job(stem)
        if job is not None:
            chain = () if job.spec.rules is None else job.spec.rules.chain
            return (job, places) if len(chain) >= places else None
        job_id, stem, places = stem, stem_of(stem), places + 1
    return None


def _chained(job_id: str, before: Job, places: int) -> Explanation:
    assert before.spec.rules is not None
    headline = f"{_named(job_id, before.spec.rules.chain[places - 1])} does not exist: it is a later job of a chain."
    where = f"job {before.spec.id!r} ({before.spec.kind})"
    advice = [f"leasemill jobs explain {quote(before.spec.id)}"]
    if before.state is JobState.SUCCEEDED:
        why = (
            f"The job before it has succeeded, {where}: it was enqueued then, and retention or purge has removed it, "
            "or it was merged with another job that held its unique key."
        )
        advice = []
    elif before.state in UNSUCCESSFUL_STATES:
        why = f"The chain has stopped at {where}, which is {before.state.value.upper()}: a redrive continues it."
        if before.state in REDRIVEN_STATES:
            advice.append(f"leasemill jobs redrive --id {quote(before.spec.id)} --reason …")
    else:
        why = f"The chain is at {where}, which is {before.state.value.upper()}: its success enqueues the next."
    return Explanation(job_id, None, Situation.WAITS_FOR_CHAIN, [headline, why], [], advice)


def _named(job_id: str, template: ChainedJob) -> str:
    return f"Job {job_id!r} ({template.kind}, queue {template.queue!r})"


# Ticks ----------------------------------------------------------------------------------------------------------


def explain_tick(job_id: str, schedule: Schedule | None, now: int) -> Explanation | None:
    """Return what became of a tick; None if the id is not that of a tick."""
    found = tick_of(job_id)
    if found is None:
        return None
    name, tick = found
    if schedule is None:
        sentences = [f"There is no job {job_id!r}, and no schedule {name!r}: it was never set, or has been removed."]
        return Explanation(job_id, None, Situation.NO_TICK, sentences, [], ["leasemill actions --target cron/" + name])
    why, advice = _why_no_job(schedule, micros(tick), now)
    headline = f"There is no job {job_id!r}, for the tick {local(schedule, micros(tick))} of schedule {name!r}."
    return Explanation(job_id, None, Situation.NO_TICK, [headline, why], [], advice)


def local(schedule: Schedule, at: int | None) -> str:
    """A time in the schedule's zone, with its offset."""
    return "-" if at is None else local_instant(instant_of(at), schedule.spec.zone)


def _why_no_job(schedule: Schedule, tick: int, now: int) -> tuple[str, list[str]]:
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
