"""The bounds that a schema states are those of the kernel: it accepts the values at their ends, and refuses those just
beyond."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import Meta, Struct
from msgspec.structs import replace

from leasemill.errors import Invalid
from leasemill.kernel import bounds, machine
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitUse, Policy, Rules, UniqueKey
from leasemill.kernel.schedule import ScheduleSpec
from leasemill.wire.bounds import FIELDS, LIMIT, bound_of

JOB = JobSpec("id", "q", "k")
SCHEDULE = ScheduleSpec("nightly", "0 3 * * *", "UTC", JobSpec("", "q", "k"))
OF_THE_SERVER = {"WatchQueues", "WatchEnd", "WatchCancellations", "PublishPresence"}
"""Requests that are no commands of the kernel: the server keeps their bounds itself."""


def enqueue(**fields: Any) -> c.Enqueue:
    return c.Enqueue([replace(JOB, **fields)])


def claim(count: int, **fields: Any) -> c.Claim:
    return replace(c.Claim("w", ["q"], count, [f"t{number}" for number in range(count)]), **fields)


WITHIN: dict[type[Struct], tuple[Struct, Callable[[Any], c.Command[Any]]]] = {
    JobSpec: (JOB, lambda job: c.Enqueue([job])),
    ChainedJob: (ChainedJob("q", "k"), lambda chained: enqueue(rules=Rules(chain=(chained,)))),
    c.Followup: (c.Followup("q", "k"), lambda followup: c.Commit("id", "t", None, [followup])),
    Policy: (Policy(), lambda policy: enqueue(policy=policy)),
    Rules: (Rules(group="g"), lambda rules: enqueue(rules=rules)),
    UniqueKey: (UniqueKey("key"), lambda unique: enqueue(rules=Rules(unique=unique), delay_us=1)),
    LimitUse: (LimitUse("limit"), lambda limit: enqueue(rules=Rules(limits=(limit,)))),
    c.Enqueue: (c.Enqueue([JOB]), lambda command: command),
    c.Claim: (claim(1), lambda command: command),
    c.Start: (c.Start([]), lambda command: command),
    c.Extend: (c.Extend([]), lambda command: command),
    c.Commit: (c.Commit("id", "t"), lambda command: command),
    c.Ack: (c.Ack([]), lambda command: command),
    c.Nack: (c.Nack([]), lambda command: command),
    c.Release: (c.Release([]), lambda command: command),
    c.Death: (c.Death([]), lambda command: command),
    c.Acquire: (c.Acquire([]), lambda command: command),
    c.AcquireRequest: (c.AcquireRequest("q", "l", 1, "k", "w", "t"), lambda request: c.Acquire([request])),
    c.NackReport: (c.NackReport("id", "t", "error"), lambda report: c.Nack([report])),
    c.ReleaseReport: (c.ReleaseReport("id", "t"), lambda report: c.Release([report])),
    c.CreateGroup: (c.CreateGroup("g"), lambda command: command),
    ScheduleSpec: (SCHEDULE, lambda spec: c.SetSchedule(spec, 2, 1, "ann", "because")),
}

ITEMS: dict[tuple[type[Struct], str], Callable[[int], Any]] = {
    (Rules, "limits"): lambda number: LimitUse(f"limit-{number}"),
    (Rules, "chain"): lambda _: ChainedJob("q", "k"),
    (c.Enqueue, "jobs"): lambda number: replace(JOB, id=f"id-{number}"),
    (c.Claim, "queues"): lambda number: f"q{number}",
    (c.Start, "reports"): lambda _: c.StartReport("id", "t"),
    (c.Extend, "leases"): lambda _: c.LeaseRef("id", "t"),
    (c.Commit, "followups"): lambda _: c.Followup("q", "k"),
    (c.Ack, "reports"): lambda _: c.AckReport("id", "t"),
    (c.Nack, "reports"): lambda _: c.NackReport("id", "t", "error"),
    (c.Release, "reports"): lambda _: c.ReleaseReport("id", "t"),
    (c.Death, "reports"): lambda _: c.DeathReport("id", "t", "cause"),
    (c.Acquire, "requests"): lambda _: c.AcquireRequest("q", "l", 1, "k", "w", "t"),
}

LOOSER = {(c.Claim, "tokens"), (c.Claim, "wait_s"), (UniqueKey, "at_most_us")}
"""A server draws the tokens, as many as the limit of the claim. The kernel does not know of waiting. A debounced job
must also wait for less than `at_most_us`."""


def stated() -> Iterator[tuple[type[Struct], str, Meta]]:
    for struct, fields in FIELDS.items():
        if struct.__name__ not in OF_THE_SERVER:
            for name, meta in fields.items():
                if name in struct.__struct_fields__ and (struct, name) not in LOOSER:
                    yield struct, name, meta


def ends(meta: Meta, item: Callable[[int], Any] | None) -> tuple[list[Any], list[Any]]:
    """Values at the ends of a bound, and just beyond."""
    if meta.pattern is not None:
        return ["a" * 100, "_", "0:a.b-c"], ["a" * 101, "", "-a", "a b", "ä"]

    def of_length(length: int) -> Any:
        return "x" * length if item is None else tuple(map(item, range(length)))

    within: list[Any] = []
    beyond: list[Any] = []
    if meta.ge is not None:
        within.append(meta.ge)
        beyond.append(meta.ge - 1)
    if meta.le is not None:
        within.append(meta.le)
        beyond.append(meta.le + 1)
    if meta.lt is not None:
        beyond.append(meta.lt)
    if meta.min_length is not None:
        within.append(of_length(meta.min_length))
        beyond.append(of_length(meta.min_length - 1))
    if meta.max_length is not None:
        within.append(of_length(meta.max_length))
        beyond.append(of_length(meta.max_length + 1))
    return within, beyond


@pytest.mark.parametrize(
    ("struct", "name", "meta"), [pytest.param(*one, id=f"{one[0].__name__}.{one[1]}") for one in stated()]
)
def test_a_bound_of_the_wire_is_the_kernels(struct: type[Struct], name: str, meta: Meta) -> None:
    valid, command_with = WITHIN[struct]
    within, beyond = ends(meta, ITEMS.get((struct, name)))
    for value in within:
        machine.check(command_with(replace(valid, **{name: value})))
    for value in beyond:
        with pytest.raises(Invalid):
            machine.check(command_with(replace(valid, **{name: value})))


@pytest.mark.parametrize("command", [claim(1), c.Expire(1), c.ListJobs(c.JobFilter(), 1), c.ListQueues(1)])
def test_a_limit_is_the_kernels(command: Any) -> None:
    assert bound_of(type(command), "limit", int) is LIMIT
    within, beyond = ends(LIMIT, None)
    for limit in within:
        machine.check(claim(limit) if isinstance(command, c.Claim) else replace(command, limit=limit))
    for limit in beyond:
        with pytest.raises(Invalid):
            machine.check(claim(limit) if isinstance(command, c.Claim) else replace(command, limit=limit))


def test_every_number_of_a_policy_has_a_bound() -> None:
    assert bounds.POLICY.keys() == {name for name in Policy.__struct_fields__ if name != "on_failure"}
