"""Schedules, groups and limits in the situations that pages show, and a worker that is stuck."""

from __future__ import annotations

from leasemill.api import schedule_commands
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, ChainedJob, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.kernel.schedule import ScheduleSpec, TickFire
from leasemill.store.base import Store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record
from tests.dashboard.filling import as_json

MINUTE = 60 * SECOND


def fill_control(store: Store, text: str = "plain text") -> None:
    """`text`: what callers, workers and operators may write as they like."""
    fill_schedules(store, text)
    fill_groups(store, text)
    fill_limits(store, text)
    _publish_stuck(store, text)


def fill_schedules(store: Store, text: str = "plain text") -> None:
    """`report` has made a job, and skipped a tick because of it; `sweep` is paused."""
    by, reason = f"ann {text}", f"reason {text}"
    call = JobSpec("", "reports", "report", as_json({"body": text, "password": "hunter2"}))
    first = store.time() // MINUTE * MINUTE - 2 * MINUTE
    set_at = store.run(c.SetSchedule(ScheduleSpec("report", "* * * * *", "UTC", call), first, first - 1, by, reason))
    assert not isinstance(set_at, c.ScheduleMoved)
    for tick in (first, first + MINUTE):
        fire = TickFire("report", set_at.revision, tick, (tick,), tick + MINUTE)
        store.run(c.FireTicks([fire], tick))
    schedule_commands.set_schedule(
        store, ScheduleSpec("sweep", "0 3 * * *", "Europe/Berlin", call), by=by, reason=reason
    )
    schedule_commands.pause_schedule(store, "sweep", by=by, reason=reason)


def fill_groups(store: Store, text: str = "plain text") -> None:
    """One that is under way, with a failed member and a group in it, and one that is over."""
    rules = Rules(group=f"group {text}")
    store.create_group(f"group {text}", then=ChainedJob("after", "then"), on_end=ChainedJob("after", "end"))
    store.create_group(f"inner {text}", parent=f"group {text}")
    store.enqueue([JobSpec(f"member-{number}", "members", "member", rules=rules) for number in range(4)])
    done, failed = store.claim(f"worker {text}"[:100], ["members"], 2)
    store.ack([c.AckReport(done.job.id, done.token)])
    store.nack([c.NackReport(failed.job.id, failed.token, f"OSError: {text}", is_permanent=True)])
    store.create_group(f"over {text}")
    store.enqueue([JobSpec("single", "over", "member", rules=Rules(group=f"over {text}"))])
    (only,) = store.claim(f"worker {text}"[:100], ["over"], 1)
    store.ack([c.AckReport(only.job.id, only.token)])
    store.seal_group(f"over {text}")


def fill_limits(store: Store, text: str = "plain text") -> None:
    """`api` has one place for each key, of which one is held; `mails` has a rate that an operator set."""
    store.declare_limits({"api": LimitTerms(places=1), "mails": LimitTerms(places=5)}, by=f"worker {text}"[:100])
    use = Rules(limits=(LimitUse("api", f"key {text}"[:100]), LimitUse("mails")))
    store.enqueue([JobSpec(f"limited-{number}", "limited", "call", rules=use) for number in range(3)])
    store.set_limit("mails", LimitTerms(4, 100, MINUTE, 10), by=f"ann {text}", reason=f"reason {text}")
    store.claim(f"worker {text}"[:100], ["limited"], 1)


def _publish_stuck(store: Store, text: str) -> None:
    stuck = RunningJob("stuck-1", f"kind {text}", 2, 90.0, pid=77)
    record = WorkerRecord(
        f"stuck {text}"[:100],
        f"host {text}",
        1,
        0.0,
        60.0,
        1.0,
        {f"queue {text}": 2},
        1,
        True,
        [],
        {f"counter {text}": 1.0},
        mismatched={f"kind {text}": 2},
        stuck=[stuck],
        schedules=["report", f"schedule {text}"],
        supervisor=f"supervisor {text}",
        processes=3,
        version=f"1.2 {text}",
    )
    store.presence.publish(record.worker, encode_record(record))
