"""`leasemill cron`: list and show schedules, and act on them."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Any

import click

from leasemill.api import schedule_commands
from leasemill.api.cron import instant_of, micros, parse_zone, ticks_after
from leasemill.cli.output import emit, emit_table, print_fields, print_json, print_table
from leasemill.cli.store_options import acting_on_store, on_store
from leasemill.errors import Invalid, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.schedule import Schedule, SkipReason
from leasemill.kernel.transitions.actions import DECLARED
from leasemill.operator.missing_job import local
from leasemill.operator.wording import counted, did_you_mean, listed, span
from leasemill.store.base import Store
from leasemill.store.worker_records import records

KNOWN_JOB_GONE = "gone"
NOT_DECLARED = (
    "no running worker declares it, but it still enqueues jobs; "
    "if no code declares it any more, remove it with `leasemill cron remove`"
)


@click.group()
def cron() -> None:
    """List, show, fire, pause, resume, remove and backfill schedules."""


@cron.command("list")
@on_store
def list_all(store: Store, as_json: bool) -> None:
    """List schedules. For each: the last tick and its job's state, the next tick, how many ticks enqueued no job."""
    found = schedule_commands.list_schedules(store)
    now, at_work = store.time(), _declared_at_work(store)
    emit_table(
        as_json,
        (_document(store, schedule, at_work) for schedule in found),
        ("schedule", "times", "zone", "kind", "last tick", "job", "next tick", "due in", "fired", "skipped"),
        (
            (
                schedule.spec.name,
                schedule.spec.expression,
                schedule.spec.zone,
                schedule.spec.call.kind,
                local(schedule, schedule.last_at),
                _job_state(store, schedule),
                "paused" if schedule.pause is not None else local(schedule, schedule.next_at),
                _due_in(schedule, now),
                f"{schedule.fired:,}",
                _skipped(schedule),
            )
            for schedule in found
        ),
    )
    for schedule in () if as_json else found:
        if _is_declared(schedule, at_work) is False:
            click.echo(f"{schedule.spec.name}: {NOT_DECLARED}")


@cron.command()
@click.argument("name")
@on_store
def show(store: Store, name: str, as_json: bool) -> None:
    """Show a schedule. Prints its call, how its ticks are handled, and the latest ticks that enqueued no job."""
    schedule = _found(store, name)
    if as_json:
        print_json(_document(store, schedule, _declared_at_work(store)))
        return
    spec, pause = schedule.spec, schedule.pause
    lines = [
        ("schedule", f"{name} (revision {schedule.revision}, set {local(schedule, schedule.set_at)})"),
        ("set by", f"{schedule.set_by}: {schedule.set_reason}"),
        ("times", f"{spec.expression} ({spec.zone})"),
        ("call", f"{spec.call.kind}, queue {spec.call.queue}: {spec.call.payload.decode()}"),
        ("overlap", spec.overlap.value),
        ("missed", spec.missed.value),
        ("jitter", span(spec.jitter_us) if spec.jitter_us else "-"),
        ("last tick", local(schedule, schedule.last_at)),
        (
            "last job",
            "-" if schedule.last_job_id is None else f"{schedule.last_job_id} ({_job_state(store, schedule)})",
        ),
        ("next tick", f"{local(schedule, schedule.next_at)} ({_due_in(schedule, store.time())})"),
        ("fired", f"{schedule.fired:,}"),
        ("skipped", _skipped(schedule)),
    ]
    if pause is not None:
        lines.append(("paused", f"since {local(schedule, pause.at)} by {pause.by}: {pause.reason}"))
    print_fields(lines)
    if _is_declared(schedule, _declared_at_work(store)) is False:
        click.echo(f"\n{NOT_DECLARED}")
    if schedule.skips:
        click.echo("\nlatest ticks that enqueued no job")
        rows = [(local(schedule, skip.tick_at), skip.reason.value, skip.job_id or "-") for skip in schedule.skips]
        print_table(("tick", "reason", "job in the way"), rows)


@cron.command("next")
@click.argument("name")
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 1_000), help="How many ticks.")
@on_store
def next_ticks(store: Store, name: str, count: int, as_json: bool) -> None:
    """Show the next ticks of a schedule, in its time zone."""
    schedule = _found(store, name)
    spec = schedule.spec
    following = islice(ticks_after(spec.expression, spec.zone, schedule.next_at), count - 1)
    ticks = [schedule.next_at, *following]
    note = [] if schedule.pause is None else ["paused: ticks enqueue no jobs until it is resumed"]
    zone = parse_zone(spec.zone)
    document = {
        "schedule": name,
        "is_paused": schedule.pause is not None,
        "ticks": [instant_of(tick).astimezone(zone).isoformat() for tick in ticks],
    }
    emit(as_json, document, *(local(schedule, tick) for tick in ticks), *note)


@cron.command()
@click.argument("name")
@acting_on_store
def fire(store: Store, name: str, reason: str, by: str, as_json: bool) -> None:
    """Enqueue a job of a schedule now. Its next tick is unchanged."""
    _found(store, name)
    outcome = schedule_commands.fire_now(store, name, by=by, reason=reason)
    is_new = isinstance(outcome, c.Enqueued)
    line = f"schedule {name} fired: job {outcome.job_id}"
    if not is_new:
        line = f"schedule {name} enqueued no job: {outcome.job_id} holds its unique key"
    emit(as_json, {"schedule": name, "job_id": outcome.job_id, "is_new": is_new}, line)


@cron.command()
@click.argument("name")
@acting_on_store
def pause(store: Store, name: str, reason: str, by: str, as_json: bool) -> None:
    """Pause a schedule. Ticks that pass while it is paused enqueue no job, not even later."""
    _found(store, name)
    paused = schedule_commands.pause_schedule(store, name, by=by, reason=reason)
    emit(as_json, _document(store, paused, _declared_at_work(store)), f"schedule {name} paused")


@cron.command()
@click.argument("name")
@acting_on_store
def resume(store: Store, name: str, reason: str, by: str, as_json: bool) -> None:
    """Resume a schedule. Its next tick is the first one after now."""
    before = _found(store, name).skipped.get(SkipReason.PAUSED, 0)
    resumed = schedule_commands.resume_schedule(store, name, by=by, reason=reason)
    over = resumed.skipped.get(SkipReason.PAUSED, 0) - before
    passed = f"; {counted(over, 'tick')} went by while it was paused" if over else ""
    line = f"schedule {name} resumed: the next tick is {local(resumed, resumed.next_at)}{passed}"
    emit(as_json, _document(store, resumed, _declared_at_work(store)), line)


@cron.command()
@click.argument("name")
@acting_on_store
def remove(store: Store, name: str, reason: str, by: str, as_json: bool) -> None:
    """Remove a schedule. Its jobs stay. A worker that starts sets it again if its code declares it."""
    _found(store, name)
    removed = schedule_commands.remove_schedule(store, name, by=by, reason=reason)
    emit(as_json, _document(store, removed, _declared_at_work(store)), f"schedule {name} removed")


@cron.command()
@click.argument("name")
@click.option("--from", "first", required=True, metavar="TIME", help="Start of the period, such as 2030-01-31T00:00.")
@click.option("--to", "last", required=True, metavar="TIME", help="End of the period, inclusive.")
@acting_on_store
def backfill(store: Store, name: str, first: str, last: str, reason: str, by: str, as_json: bool) -> None:
    """Enqueue the jobs of past ticks. Use it for ticks that were missed or skipped, or are older than the schedule.

    Times without an offset are in the schedule's zone. A tick whose job exists does not make another.
    """
    zone = _found(store, name).spec.zone
    begin, end = _time("--from", first, zone), _time("--to", last, zone)
    if end < begin:
        raise Invalid("--to is before --from: swap them")
    outcomes = schedule_commands.backfill(store, name, begin, end, by=by, reason=reason)
    new = [outcome.job_id for outcome in outcomes if isinstance(outcome, c.Enqueued)]
    known = len(outcomes) - len(new)
    extra = f"; {counted(known, 'tick')} made none, because the job exists" if known else ""
    document = {"schedule": name, "ticks": len(outcomes), "job_ids": new}
    emit(as_json, document, f"schedule {name}: {counted(len(new), 'job')} made{extra}")


# How a schedule is found and shown ---------------------------------------------------------------------------------


def _found(store: Store, name: str) -> Schedule:
    schedule = store.run(c.GetSchedule(name))
    if schedule is None:
        known = [one.spec.name for one in schedule_commands.list_schedules(store)]
        raise NotFound(
            f"there is no schedule {name!r}{did_you_mean(name, known) or '.'} "
            f"Known schedules: {listed(known) or 'none'}"
        )
    return schedule


def _time(option: str, text: str, zone: str) -> int:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{option} {text!r} is not a time: write it as 2030-01-31T06:00 or 2030-01-31T05:00Z") from None
    return micros(at if at.tzinfo is not None else at.replace(tzinfo=parse_zone(zone)))


def _job_state(store: Store, schedule: Schedule) -> str:
    if schedule.last_job_id is None:
        return "-"
    job = store.job(schedule.last_job_id)
    return KNOWN_JOB_GONE if job is None else job.state.value


def _due_in(schedule: Schedule, now: int) -> str:
    if schedule.pause is not None:
        return "paused"
    left = schedule.next_at - now
    return f"in {span(left)}" if left > 0 else f"due for {span(-left)}"


def _skipped(schedule: Schedule) -> str:
    return ", ".join(f"{count:,} {reason.value}" for reason, count in sorted(schedule.skipped.items())) or "-"


def _declared_at_work(store: Store) -> frozenset[str]:
    """Return the schedules that the code of running workers declares."""
    return frozenset(
        name for record, age_s in records(store.presence) if not record.is_stale(age_s) for name in record.schedules
    )


def _is_declared(schedule: Schedule, at_work: frozenset[str]) -> bool | None:
    """Return whether a running worker declares it, or None if it was set by an app or an operator instead."""
    return schedule.spec.name in at_work if schedule.set_reason == DECLARED else None


def _document(store: Store, schedule: Schedule, at_work: frozenset[str]) -> dict[str, Any]:
    spec, pause = schedule.spec, schedule.pause
    return {
        "name": spec.name,
        "expression": spec.expression,
        "zone": spec.zone,
        "kind": spec.call.kind,
        "queue": spec.call.queue,
        "overlap": spec.overlap.value,
        "missed": spec.missed.value,
        "jitter_s": spec.jitter_us / 1_000_000,
        "revision": schedule.revision,
        "set_by": schedule.set_by,
        "set_reason": schedule.set_reason,
        "is_declared": _is_declared(schedule, at_work),
        "is_paused": pause is not None,
        "paused": None if pause is None else {"at": _iso(pause.at), "by": pause.by, "reason": pause.reason},
        "last_at": _iso(schedule.last_at),
        "last_job_id": schedule.last_job_id,
        "last_job_state": None if schedule.last_job_id is None else _job_state(store, schedule),
        "next_at": _iso(schedule.next_at),
        "fired": schedule.fired,
        "skipped": {reason.value: count for reason, count in sorted(schedule.skipped.items())},
        "skips": [
            {"tick_at": _iso(skip.tick_at), "reason": skip.reason.value, "job_id": skip.job_id}
            for skip in schedule.skips
        ],
    }


def _iso(at: int | None) -> str | None:
    return None if at is None else instant_of(at).isoformat().replace("+00:00", "Z")
