"""`app.schedules`: schedules that code declares, and those that are set while a program runs.

What code declares is set by workers when they start (`declared`); nothing here removes a schedule by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from leasemill.api import schedule_commands
from leasemill.api.call import Call, HasStore
from leasemill.api.cron import instant_of, micros, parse, parse_zone
from leasemill.api.handle import JobHandle
from leasemill.api.job import JobType
from leasemill.api.policy import Duration, microseconds
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import JobSpec
from leasemill.kernel.schedule import DAY_US, Missed, Overlap, Schedule, ScheduleSpec

OverlapChoice: TypeAlias = Literal["skip", "one", "queue", "allow"]
MissedChoice: TypeAlias = Literal["latest", "all", "skip"]
BY: Final = "application"
ChoiceT = TypeVar("ChoiceT", bound=StrEnum)


class CronOptions(TypedDict, total=False):
    """The options of `app.cron`."""

    name: str | None
    tz: str
    args: Mapping[str, Any] | None
    overlap: OverlapChoice | None
    missed: MissedChoice
    jitter: Duration
    catch_up: Duration | None


class ScheduleOptions(TypedDict, total=False):
    """The options of `app.schedules.set`."""

    tz: str
    overlap: OverlapChoice | None
    missed: MissedChoice
    jitter: Duration
    catch_up: Duration | None
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it stands. Times are in its zone."""

    name: str
    expression: str
    tz: str
    kind: str
    queue: str
    overlap: str
    missed: str
    jitter: timedelta
    is_paused: bool
    revision: int
    next_at: datetime
    last_at: datetime | None
    """The latest tick that was decided on, whether it made a job or not."""
    last_job_id: str | None
    fired: int
    skipped: dict[str, int]
    """The number of ticks that enqueued no job, by reason."""
    skips: tuple[tuple[datetime, str], ...]
    """The latest of those, with the reason."""


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule in code. Its call is made when it is first needed: annotations may name what is defined later."""

    job: JobType[..., Any]
    args: Mapping[str, Any]
    without_call: ScheduleSpec

    def spec(self) -> ScheduleSpec:
        call = self.job.followup_call(**self.args)
        call.check_alone()
        return replace(self.without_call, call=replace(call.spec, headers=self.job.chosen.headers))


Infos: TypeAlias = list[ScheduleInfo]
Handles: TypeAlias = list[JobHandle[Any]]
"""Named here: in `Schedules` the word `list` is a method."""


class Schedules:
    """The schedules of an app's store. Every change is recorded with who made it and why."""

    def __init__(self, app: HasStore, load: Callable[[], None]) -> None:
        self._app = app
        self._load = load
        """Imports the modules that declare jobs and schedules."""
        self._declared: dict[str, DeclaredSchedule] = {}

    @property
    def declared(self) -> Mapping[str, DeclaredSchedule]:
        """The schedules that the code declares, by name."""
        self._load()
        return MappingProxyType(self._declared)

    def declare(self, when: str | timedelta, job: JobType[..., Any], options: CronOptions) -> None:
        """Add a schedule, as `app.cron` does. The same declaration again changes nothing."""
        if not isinstance(job, JobType):
            raise Invalid(f"{job!r} is not a job: write @app.cron(...) above @app.job")
        _check_options("app.cron", options, CronOptions)
        name = options.get("name") or job.kind
        without_call = _spec_without_call(name, when, options)
        chosen = job.chosen
        if chosen.job_id is not None or chosen.delay_us or chosen.run_at is not None:
            raise Invalid(f"schedule {name!r}: leave out job_id, delay and run_at, its ticks supply them")
        made = DeclaredSchedule(job, dict(options.get("args") or {}), without_call)
        known = self._declared.get(name)
        if known is not None and (known.job.kind, known.args, known.without_call) != (
            job.kind,
            made.args,
            without_call,
        ):
            raise Invalid(f"schedule {name!r} is declared twice: give one of them another name with name=...")
        is_resolved = False
        with suppress(Invalid):
            job.arguments.check()
            is_resolved = True
        if is_resolved:
            made.spec()  # refuses arguments that do not fit where they are written
        self._declared[name] = made

    def set(
        self, name: str, when: str | timedelta, call: Call[Any], **options: Unpack[ScheduleOptions]
    ) -> ScheduleInfo:
        """Set a schedule: it is kept until it is removed. The same content again changes nothing.

        `when`: a cron expression, or an interval. `call`: `job.call(...)`, without an id, a delay or a time. The
        options are those of `app.cron`, and who sets it and why, `by` and `reason`.
        """
        wanted, by, reason = _wanted(name, when, call, options)
        return info(schedule_commands.set_schedule(self._app.store, wanted, by=by, reason=reason))

    async def aset(
        self, name: str, when: str | timedelta, call: Call[Any], **options: Unpack[ScheduleOptions]
    ) -> ScheduleInfo:
        """`set` in async code."""
        wanted, by, reason = _wanted(name, when, call, options)
        return info(await schedule_commands.set_schedule.on_loop(self._app.store, wanted, by=by, reason=reason))

    def remove(self, name: str, *, by: str = BY, reason: str = "removed by the application") -> None:
        """Remove a schedule; jobs it has made stay. A worker that starts sets it again if its code declares it."""
        schedule_commands.remove_schedule(self._app.store, name, by=by, reason=reason)

    async def aremove(self, name: str, *, by: str = BY, reason: str = "removed by the application") -> None:
        """`remove` in async code."""
        await schedule_commands.remove_schedule.on_loop(self._app.store, name, by=by, reason=reason)

    def pause(self, name: str, *, by: str = BY, reason: str = "paused by the application") -> ScheduleInfo:
        """Make no jobs until it is resumed; ticks that go by meanwhile are skipped."""
        return info(schedule_commands.pause_schedule(self._app.store, name, by=by, reason=reason))

    async def apause(self, name: str, *, by: str = BY, reason: str = "paused by the application") -> ScheduleInfo:
        """`pause` in async code."""
        return info(await schedule_commands.pause_schedule.on_loop(self._app.store, name, by=by, reason=reason))

    def resume(self, name: str, *, by: str = BY, reason: str = "resumed by the application") -> ScheduleInfo:
        """Go on with the next tick after now."""
        return info(schedule_commands.resume_schedule(self._app.store, name, by=by, reason=reason))

    async def aresume(self, name: str, *, by: str = BY, reason: str = "resumed by the application") -> ScheduleInfo:
        """`resume` in async code."""
        return info(await schedule_commands.resume_schedule.on_loop(self._app.store, name, by=by, reason=reason))

    def fire(self, name: str, *, by: str = BY, reason: str = "fired by the application") -> JobHandle[Any]:
        """Make a job of the schedule at once, whether it is paused or another of its jobs runs."""
        store = self._app.store
        outcome = schedule_commands.fire_now(store, name, by=by, reason=reason)
        return JobHandle(store, outcome.job_id, None, outcome)

    async def afire(self, name: str, *, by: str = BY, reason: str = "fired by the application") -> JobHandle[Any]:
        """`fire` in async code."""
        store = self._app.store
        outcome = await schedule_commands.fire_now.on_loop(store, name, by=by, reason=reason)
        return JobHandle(store, outcome.job_id, None, outcome)

    def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        by: str = BY,
        reason: str = "backfilled by the application",
    ) -> Handles:
        """Make the jobs of ticks that are over, both times included. One whose job is known makes none."""
        store = self._app.store
        first, last = _micros("start", start), _micros("end", end)
        outcomes = schedule_commands.backfill(store, name, first, last, by=by, reason=reason)
        return [JobHandle(store, outcome.job_id, None, outcome) for outcome in outcomes]

    async def abackfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        by: str = BY,
        reason: str = "backfilled by the application",
    ) -> Handles:
        """`backfill` in async code."""
        store = self._app.store
        first, last = _micros("start", start), _micros("end", end)
        outcomes = await schedule_commands.backfill.on_loop(store, name, first, last, by=by, reason=reason)
        return [JobHandle(store, outcome.job_id, None, outcome) for outcome in outcomes]

    def get(self, name: str) -> ScheduleInfo | None:
        found = self._app.store.run(c.GetSchedule(name))
        return None if found is None else info(found)

    async def aget(self, name: str) -> ScheduleInfo | None:
        """`get` in async code."""
        found = await self._app.store.arun(c.GetSchedule(name))
        return None if found is None else info(found)

    def list(self) -> Infos:
        """Every schedule of the store, by name."""
        return [info(schedule) for schedule in schedule_commands.list_schedules(self._app.store)]

    async def alist(self) -> Infos:
        """`list` in async code."""
        return [info(schedule) for schedule in await schedule_commands.list_schedules.on_loop(self._app.store)]


def _wanted(
    name: str, when: str | timedelta, call: Call[Any], options: ScheduleOptions
) -> tuple[ScheduleSpec, str, str]:
    """Return the schedule that `set` asks for, who does and why."""
    _check_options("app.schedules.set", options, ScheduleOptions)
    if not isinstance(call, Call):
        raise Invalid(f"schedule {name!r}: {call!r} is not a call; write job.call(...) with its arguments")
    call.check_alone()
    if not call.has_drawn_id:
        raise Invalid(f"schedule {name!r}: the call has a job_id of its own; leave it out, its ticks supply it")
    spec = _spec_without_call(name, when, options)
    by, reason = options.get("by", BY), options.get("reason", "set by the application")
    return replace(spec, call=replace(call.spec, id="")), by, reason


def _check_options(what: str, options: Mapping[str, object], known: type[Any]) -> None:
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        raise Invalid(f"{what} has no option {unknown[0]!r}: use {', '.join(known.__annotations__)}")


def _spec_without_call(name: str, when: str | timedelta, options: CronOptions | ScheduleOptions) -> ScheduleSpec:
    """Return the schedule without its call; refuses what is wrong where it is written."""
    check_name("schedule", name)
    times = parse(when)
    tz, overlap, catch_up = options.get("tz", "UTC"), options.get("overlap"), options.get("catch_up")
    parse_zone(tz)
    missed = _choice("missed", options.get("missed", "latest"), Missed)
    return ScheduleSpec(
        name,
        times.expression,
        tz,
        JobSpec("", "", ""),
        _default_overlap(missed) if overlap is None else _choice("overlap", overlap, Overlap),
        missed,
        microseconds("jitter", options.get("jitter", 0)),
        DAY_US if catch_up is None else microseconds("catch_up", catch_up),
    )


def _default_overlap(missed: Missed) -> Overlap:
    """Return the overlap for `missed`: with "all" no tick is skipped because the one before it still runs."""
    return Overlap.QUEUE if missed is Missed.ALL else Overlap.SKIP


def _choice(what: str, value: str, choices: type[ChoiceT]) -> ChoiceT:
    try:
        return choices(value)
    except ValueError:
        raise Invalid(f"{what} is {value!r}; it must be one of {', '.join(choices)}") from None


def _micros(what: str, at: datetime) -> int:
    if at.tzinfo is None:
        raise Invalid(f"{what} is {at!r}, which has no time zone: write datetime(..., tzinfo=UTC), or .astimezone()")
    return micros(at)


def info(schedule: Schedule) -> ScheduleInfo:
    spec = schedule.spec
    try:
        zone = parse_zone(spec.zone)
    except Invalid:
        zone = parse_zone("UTC")  # this machine does not know it; the times are right all the same
    return ScheduleInfo(
        spec.name,
        spec.expression,
        spec.zone,
        spec.call.kind,
        spec.call.queue,
        spec.overlap.value,
        spec.missed.value,
        timedelta(microseconds=spec.jitter_us),
        schedule.pause is not None,
        schedule.revision,
        instant_of(schedule.next_at).astimezone(zone),
        None if schedule.last_at is None else instant_of(schedule.last_at).astimezone(zone),
        schedule.last_job_id,
        schedule.fired,
        {reason.value: count for reason, count in schedule.skipped.items()},
        tuple((instant_of(skip.tick_at).astimezone(zone), skip.reason.value) for skip in schedule.skips),
    )
