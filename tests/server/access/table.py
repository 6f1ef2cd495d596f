"""For every command: which roles may use it, and what it is like inside and outside of a key's queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitTerms, Order, Policy
from leasemill.kernel.schedule import ScheduleSpec, TickFire
from leasemill.wire import requests as r
from leasemill.wire.routes import Role
from tests.server.access.world import DAY, DECLARED, SIDES, record_of

READ, PRODUCE, WORK, OPERATE = Role.READER, Role.PRODUCER, Role.WORKER, Role.OPERATOR
LOOK: Final = {READ, OPERATE}
ANY: Final = {READ, PRODUCE, WORK, OPERATE}
SIGNED: Final = ("mallory", "because")


class Row(NamedTuple):
    """`of`: the command on one side, `own` or `zzz`, which is refused to a key for `own.*`. `hides`: it names no side,
    and its answer must show nothing of the other. `is_neutral`: neither the command nor the answer is of a side."""

    roles: set[Role]
    of: Callable[[str], c.Command[Any]]
    hides: bool = False
    is_neutral: bool = False


def _schedule(side: str) -> ScheduleSpec:
    return ScheduleSpec(f"{side}-schedule", "@hourly", "UTC", JobSpec("", SIDES[side], "k"))


def _report(side: str) -> tuple[str, str]:
    return f"{side}-leased", f"{side}-token"


ROWS: Final[dict[type, Row]] = {
    c.Enqueue: Row({PRODUCE}, lambda side: c.Enqueue([JobSpec("new", SIDES[side], "k")])),
    c.Claim: Row({WORK}, lambda side: c.Claim("w", [SIDES[side]], 1, ["t"], "r")),
    c.Start: Row({WORK}, lambda side: c.Start([c.StartReport(*_report(side))])),
    c.Extend: Row({WORK}, lambda side: c.Extend([c.LeaseRef(*_report(side))])),
    c.Commit: Row({WORK}, lambda side: c.Commit(*_report(side))),
    c.Ack: Row({WORK}, lambda side: c.Ack([c.AckReport(*_report(side))])),
    c.Nack: Row({WORK}, lambda side: c.Nack([c.NackReport(*_report(side), "no")])),
    c.Release: Row({WORK}, lambda side: c.Release([c.ReleaseReport(*_report(side))])),
    c.Acquire: Row({WORK}, lambda side: c.Acquire([c.AcquireRequest(f"{side}.stream", "a", 1, "w", "t")])),
    c.Expire: Row({WORK}, lambda _: c.Expire(10), hides=True),
    c.Death: Row({WORK, OPERATE}, lambda side: c.Death([c.DeathReport(*_report(side), "gone")])),
    c.Prune: Row({OPERATE}, lambda _: c.Prune(1, 0, 1)),
    c.DeclareLimits: Row(
        {WORK}, lambda side: c.DeclareLimits([c.DeclaredLimit(DECLARED[side], LimitTerms(places=1))], "mallory")
    ),
    c.CreateGroup: Row({PRODUCE}, lambda side: c.CreateGroup("new", ChainedJob(SIDES[side], "k"))),
    c.SealGroup: Row({PRODUCE, OPERATE}, lambda side: c.SealGroup(f"{side}-group")),
    c.SetSchedule: Row(
        {PRODUCE, WORK, OPERATE}, lambda side: c.SetSchedule(_schedule(side), 5 * DAY, 4 * DAY, *SIGNED)
    ),
    c.DueSchedules: Row({WORK}, lambda _: c.DueSchedules(9 * DAY, 10), hides=True),
    c.NextTick: Row({WORK}, lambda _: c.NextTick(), is_neutral=True),
    c.FireTicks: Row(
        {WORK}, lambda side: c.FireTicks([TickFire(f"{side}-schedule", 1, 5 * DAY, (5 * DAY,), 6 * DAY)], 5 * DAY)
    ),
    c.DueIn: Row({READ, WORK, OPERATE}, lambda side: c.DueIn([SIDES[side]])),
    c.GetPolicies: Row({WORK}, lambda side: c.GetPolicies([SIDES[side]])),
    r.WatchQueues: Row({WORK}, lambda side: r.WatchQueues([SIDES[side]])),
    r.WatchCancellations: Row({WORK}, lambda _: r.WatchCancellations(), is_neutral=True),
    r.PublishPresence: Row({WORK}, lambda side: r.PublishPresence("w", record_of("w", SIDES[side]))),
    r.RemovePresence: Row({WORK, OPERATE}, lambda _: r.RemovePresence("w"), is_neutral=True),
    r.ListPresence: Row({READ, WORK, OPERATE}, lambda _: r.ListPresence(), hides=True),
    r.WatchEnd: Row(ANY, lambda side: r.WatchEnd(f"{side}-job")),
    c.GetJob: Row(ANY, lambda side: c.GetJob(f"{side}-job")),
    c.ListJobs: Row(LOOK, lambda _: c.ListJobs(c.JobFilter(), 100), hides=True),
    c.ListLeases: Row({READ, WORK, OPERATE}, lambda _: c.ListLeases(100), hides=True),
    c.GetKey: Row({READ, PRODUCE, OPERATE}, lambda side: c.GetKey(SIDES[side], f"{side}-key")),
    c.ListQueues: Row({READ, WORK, OPERATE}, lambda _: c.ListQueues(100), hides=True),
    c.GetLane: Row({READ, WORK, OPERATE}, lambda side: c.GetLane(SIDES[side], f"{side}-lane")),
    c.ListLanes: Row(LOOK, lambda side: c.ListLanes(SIDES[side], 100)),
    c.GetGroup: Row(ANY, lambda side: c.GetGroup(f"{side}-group")),
    c.ListGroups: Row(LOOK, lambda _: c.ListGroups(100), hides=True),
    c.GetLimit: Row(LOOK, lambda side: c.GetLimit(f"queue:{SIDES[side]}")),
    c.ListLimits: Row({READ, WORK, OPERATE}, lambda _: c.ListLimits(100), hides=True),
    c.GetSchedule: Row(ANY, lambda side: c.GetSchedule(f"{side}-schedule")),
    c.ListSchedules: Row({READ, WORK, OPERATE}, lambda _: c.ListSchedules(100), hides=True),
    c.ListActions: Row(LOOK, lambda _: c.ListActions(100), hides=True),
    c.GetOrder: Row(LOOK, lambda side: c.GetOrder(f"{side}-instance")),
    c.GetTotals: Row(LOOK, lambda _: c.GetTotals(), is_neutral=True),
    c.GetTime: Row(ANY, lambda _: c.GetTime(), is_neutral=True),
    c.Cancel: Row({OPERATE}, lambda side: c.Cancel([f"{side}-job"], *SIGNED)),
    c.CancelGroup: Row({OPERATE}, lambda side: c.CancelGroup(f"{side}-group", *SIGNED, 10)),
    c.Redrive: Row({OPERATE}, lambda side: c.Redrive(c.JobFilter(queue=SIDES[side]), *SIGNED, 10)),
    c.Purge: Row({OPERATE}, lambda side: c.Purge(c.JobFilter(queue=SIDES[side]), *SIGNED, 10)),
    c.Pause: Row({OPERATE}, lambda side: c.Pause(SIDES[side], *SIGNED)),
    c.Resume: Row({OPERATE}, lambda side: c.Resume(SIDES[side], *SIGNED)),
    c.SetPolicy: Row({OPERATE}, lambda side: c.SetPolicy(SIDES[side], Policy(max_retries=2), *SIGNED)),
    c.OrderWorker: Row(
        {OPERATE}, lambda side: c.OrderWorker(f"{side}-worker", f"{side}-instance", Order.QUIET, *SIGNED)
    ),
    c.SetLimit: Row({OPERATE}, lambda side: c.SetLimit(f"queue:{SIDES[side]}", LimitTerms(places=2), *SIGNED)),
    c.ClearLimit: Row({OPERATE}, lambda side: c.ClearLimit(f"queue:{SIDES[side]}", *SIGNED)),
    c.RemoveSchedule: Row({OPERATE}, lambda side: c.RemoveSchedule(f"{side}-schedule", *SIGNED)),
    c.PauseSchedule: Row({OPERATE}, lambda side: c.PauseSchedule(f"{side}-schedule", *SIGNED)),
    c.ResumeSchedule: Row(
        {OPERATE}, lambda side: c.ResumeSchedule(f"{side}-schedule", 5 * DAY, (5 * DAY,), 6 * DAY, *SIGNED)
    ),
    c.FireNow: Row({OPERATE}, lambda side: c.FireNow(f"{side}-schedule", 5 * DAY, *SIGNED)),
    c.Backfill: Row({OPERATE}, lambda side: c.Backfill(f"{side}-schedule", (4 * DAY,), *SIGNED)),
}
