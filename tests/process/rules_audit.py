"""What must hold of the store's own records when every worker has been killed often enough. Pure.

Each function yields what is wrong, in sentences; nothing: it holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import json

from leasemill.kernel.commands import GroupView
from leasemill.kernel.index.limit_index import interval_us
from leasemill.kernel.model import ENDED_STATES, SECOND, AbortReason, Execution, Job, JobState, LimitTerms, LimitUse
from leasemill.kernel.schedule import Schedule, tick_id
from tests.process.rules_app import ADDED, STEPS, Flavour, flavour_of


@dataclass(frozen=True)
class Records:
    """The jobs and groups of a store."""

    jobs: dict[str, Job]
    groups: dict[str, GroupView] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)

    @property
    def expired_leases(self) -> int:
        return sum(
            one.reason in (AbortReason.EXPIRED, AbortReason.DIED)
            for job in self.jobs.values()
            for one in job.executions
        )


def ends(records: Records) -> Iterator[str]:
    """Everything has ended, and took effect at most once."""
    for job_id, job in records.jobs.items():
        if job.state not in ENDED_STATES:
            yield f"{job_id} has not ended: it is {job.state}"
        committed = sum(one.committed_at is not None for one in job.executions)
        if committed != (job.state is JobState.SUCCEEDED):
            yield f"{job_id} is {job.state} and took effect {committed} times"


def ids(records: Records, expected: Iterable[str]) -> Iterator[str]:
    """No job is lost, and none is there that nobody asked for."""
    wanted = set(expected)
    yield from (f"{job_id} is lost" for job_id in sorted(wanted - records.jobs.keys()))
    yield from (f"{job_id} is one too many" for job_id in sorted(records.jobs.keys() - wanted))


# Groups ---------------------------------------------------------------------------------------------------------


def group_name(number: int) -> str:
    return f"group-{number:03}"


def ids_of_group(number: int, members: int, records: Records) -> Iterator[str]:
    """Every job of a group. A cancelled one has what its members had made before: those are in the records."""
    name, flavour = group_name(number), flavour_of(number)
    yield f"produce-{number:03}"
    yield f"{name}/end"
    if flavour not in (Flavour.FAILS, Flavour.CANCELLED):
        yield f"{name}/then"
    if flavour is Flavour.CANCELLED and f"{name}/then" in records.jobs:
        yield f"{name}/then"
    for place in range(0 if flavour is Flavour.EMPTY else members):
        member = f"{name}-{place}"
        if flavour is not Flavour.CANCELLED or member in records.jobs:
            yield member
        if flavour is Flavour.ADDS:
            yield from (f"{member}/{index}" for index in range(ADDED))
        if flavour is Flavour.CHAINS:
            yield from (member + "/then" * step for step in range(1, STEPS))


def groups(records: Records, count: int) -> Iterator[str]:
    """Every count is that of the members, and each callback came once, when it had to and not before."""
    members: defaultdict[str, list[Job]] = defaultdict(list)
    for job in records.jobs.values():
        if job.spec.rules is not None and job.spec.rules.group is not None:
            members[job.spec.rules.group].append(job)
    callbacks = Counter(
        (job.spec.kind, json.decode(job.spec.payload)["group"])
        for job in records.jobs.values()
        if job.spec.queue == "callbacks"
    )
    for number in range(count):
        name, flavour = group_name(number), flavour_of(number)
        view = records.groups.get(name)
        if view is None:
            yield f"{name} is lost"
            continue
        yield from _counts(view, members[name])
        if callbacks["has_ended", name] != 1:
            yield f"{name} ended {callbacks['has_ended', name]} times"
        has_succeeded = all(job.state is JobState.SUCCEEDED for job in members[name])
        if callbacks["has_succeeded", name] != has_succeeded:
            yield f"{name} ({flavour}) enqueued `then` {callbacks['has_succeeded', name]} times"
        yield from _callback_after(records.jobs.get(f"{name}/then"), members[name])
        if flavour is not Flavour.REDRIVEN:
            yield from _callback_after(records.jobs.get(f"{name}/end"), members[name])


def _counts(view: GroupView, members: list[Job]) -> Iterator[str]:
    states = Counter(job.state for job in members)
    counted = {
        JobState.SUCCEEDED: view.succeeded,
        JobState.FAILED: view.failed,
        JobState.DEAD: view.dead,
        JobState.CANCELLED: view.cancelled,
    }
    for state, count in counted.items():
        if count != states[state]:
            yield f"{view.id} counts {count} {state}, and there are {states[state]}"
    if not view.is_over or view.unfinished or view.total != len(members):
        yield f"{view.id} has {view.unfinished} of {view.total} unfinished, and there are {len(members)} members"


def _callback_after(callback: Job | None, members: list[Job]) -> Iterator[str]:
    """The end of the last member and the callback are one fact."""
    if callback is None or not members:
        return
    last = max(_ended_at(job) for job in members)
    if callback.created_at < last:
        yield f"{callback.spec.id} was enqueued {last - callback.created_at} us before the last member had ended"


def _ended_at(job: Job) -> int:
    if job.state is JobState.CANCELLED:
        assert job.cancellation is not None
        return job.cancellation.at
    return job.executions[-1].finished_at or 0


# Schedules ------------------------------------------------------------------------------------------------------


def ids_of_schedule(schedule: Schedule, every_s: int) -> Iterator[str]:
    """The jobs of every tick since it was set, up to the latest that was decided on."""
    every = every_s * SECOND
    first = schedule.since_at // every + 1
    last = (schedule.last_at or 0) // every
    yield from (tick_id(schedule.spec.name, number * every) for number in range(first, last + 1))


def schedules(records: Records, intervals_s: Mapping[str, int]) -> Iterator[str]:
    """Every tick made one job, and its schedule counts as many."""
    for name in intervals_s:
        schedule = records.schedules.get(name)
        if schedule is None or schedule.last_at is None:
            yield f"schedule {name} never fired"
            continue
        made = sum(job_id.startswith(tick_id(name, 0).rpartition("/")[0] + "/") for job_id in records.jobs)
        if schedule.fired != made or any(schedule.skipped.values()):
            yield f"schedule {name} counts {schedule.fired} ticks, skipped {schedule.skipped}, and made {made} jobs"


# Limits ---------------------------------------------------------------------------------------------------------


def limits(records: Records, terms: Mapping[str, LimitTerms]) -> Iterator[str]:
    """By name and key, never more leases at once than places, and never more grants than the rate; `terms` by name."""
    for use, executions in leases_under_limits(records).items():
        places, (most, when) = terms[use.name].places, most_at_once(executions)
        if places is not None and most > places:
            yield f"limit {use.name} ({use.key}) has {places} places, and {most} were held at {when}"
        for one in executions:
            if one.reason is AbortReason.EXPIRED and (one.finished_at or 0) < one.expires_at:
                yield f"{one.job_id} lost its place with attempt {one.attempt} before the lease had expired"
        early_us = too_early_us(sorted(one.leased_at for one in executions), terms[use.name])
        if early_us > 0:
            yield f"limit {use.name} ({use.key}) had a grant {early_us} us before its rate was due"


def leases_under_limits(records: Records) -> dict[LimitUse, list[Execution]]:
    held: defaultdict[LimitUse, list[Execution]] = defaultdict(list)
    for job in records.jobs.values():
        for use in () if job.spec.rules is None else job.spec.rules.limits:
            held[use] += job.executions
    return held


def too_early_us(instants: Sequence[int], terms: LimitTerms) -> int:
    """By how much a grant came before its rate was due, at worst. T10: with n grants from one to another, both counted,
    the other is at least n - burst intervals later; so in any time there are at most burst + rate * time."""
    interval, burst = interval_us(terms), terms.burst or 1
    worst, latest = 0, instants[0] if instants else 0
    for number, at in enumerate(instants):
        start = at - number * interval
        latest = max(latest, start)
        worst = max(worst, latest - start - (burst - 1) * interval)
    return worst


def most_at_once(executions: Iterable[Execution]) -> tuple[int, int]:
    """The largest number of leases that were held together, and since when. A lease that ends at an instant has
    left its place to one that begins then."""
    changes: list[tuple[int, int]] = []
    for one in executions:
        ended_at = one.finished_at
        changes.append((one.leased_at, 1))
        if ended_at is not None:
            changes.append((ended_at, -1))
    now = most = when = 0
    for at, change in sorted(changes):
        now += change
        if now > most:
            most, when = now, at
    return most, when


def most_used(records: Records) -> dict[LimitUse, int]:
    """How many places of each limit were held together at most: whether the limits were reached at all."""
    return {use: most_at_once(executions)[0] for use, executions in leases_under_limits(records).items()}
