"""The rules that are at work while workers are killed: what each asks for, and what must hold afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from leasemill.api.call import Call
from leasemill.api.schedule_commands import list_schedules, pause_schedule
from leasemill.errors import NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import AbortReason, LimitUse
from leasemill.store.base import Store
from tests.process import rules_app, rules_audit
from tests.process.rules_app import CUSTOMERS, INTERVALS_S, Flavour, app, flavour_of, gate
from tests.process.rules_audit import Records, group_name

SECONDS_FOR_EACH_KILL = 0.5
LIMITED_FOR_EACH_KILL = 10


@dataclass(frozen=True)
class Size:
    """How much there is to do, and over which time it is due."""

    kills: int
    groups: int
    members: int
    workers: int = 4

    @property
    def over_s(self) -> float:
        return self.kills * SECONDS_FOR_EACH_KILL


class Part(Protocol):
    """One rule."""

    name: str

    def feed(self, kill: int, kills: int) -> None:
        """Before the first kill (0) and after each: add work."""

    def settle(self) -> None:
        """After the last kill, as often as needed: what an operator does, so that everything can end."""

    def has_settled(self) -> bool: ...

    def expected(self, records: Records) -> Iterator[str]:
        """The ids of its jobs."""

    def wrong(self, records: Records) -> Iterator[str]: ...

    def summary(self, records: Records) -> str: ...


class GroupsPart:
    """Groups of every flavour, made by jobs that are killed too."""

    name = "groups"

    def __init__(self, store: Store, folder: Path, size: Size) -> None:
        self._store = store
        self._folder = folder
        self._size = size
        self._count = size.groups
        self._mended: set[str] = set()
        self._cancelled: set[str] = set()

    def feed(self, kill: int, kills: int) -> None:
        if kill == 0:
            rules_app.produce.enqueue_many(
                rules_app.produce.options(job_id=f"produce-{number:03}").call(
                    number, self._size.members, self._size.over_s
                )
                for number in range(self._count)
            )
        else:
            self._cancel_some(kill / kills)
            self._mend()

    def settle(self) -> None:
        for number in range(self._count):
            if flavour_of(number) is Flavour.CANCELLED:
                self._cancel(group_name(number))
        self._mend()

    def has_settled(self) -> bool:
        wanted = Counter(flavour_of(number) for number in range(self._count))
        return len(self._mended) == wanted[Flavour.REDRIVEN] and len(self._cancelled) == wanted[Flavour.CANCELLED]

    def _cancel_some(self, share: float) -> None:
        for number in range(self._count):
            if flavour_of(number) is Flavour.CANCELLED and rules_app.share(f"{number}") < share:
                self._cancel(group_name(number))

    def _cancel(self, name: str) -> None:
        if name in self._cancelled:
            return
        with suppress(NotFound):  # its producer has not made it yet
            self._store.cancel_group(name, by="lab", reason="in the middle")
            self._cancelled.add(name)

    def _mend(self) -> None:
        """Redrive members that failed, when their group is over."""
        for number in range(self._count):
            name = group_name(number)
            if flavour_of(number) is not Flavour.REDRIVEN or name in self._mended:
                continue
            view = self._store.group(name)
            if view is not None and view.is_over:
                (self._folder / gate(name)).touch()
                self._store.redrive(c.JobFilter(group=name), by="lab", reason="mended")
                self._mended.add(name)

    def expected(self, records: Records) -> Iterator[str]:
        for number in range(self._count):
            yield from rules_audit.ids_of_group(number, self._size.members, records)

    def wrong(self, records: Records) -> Iterator[str]:
        yield from rules_audit.groups(records, self._count)

    def summary(self, records: Records) -> str:
        members = sum(view.total for view in records.groups.values())
        callbacks = sum(job.spec.queue == "callbacks" for job in records.jobs.values())
        return f"{len(records.groups)} groups, {members} members, {callbacks} callbacks, each once"


class JobsPart:
    """Plain jobs under limits: everything ends by itself."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def enqueue(self, calls: Sequence[Call[Any]]) -> None:
        app.enqueue_many(calls)
        self._ids += [call.job_id for call in calls]

    def settle(self) -> None:
        """Nothing to do."""

    def has_settled(self) -> bool:
        return True

    def expected(self, records: Records) -> Iterator[str]:
        yield from self._ids


class LimitsPart(JobsPart):
    """Jobs under one limit, under one for each customer, and under both."""

    name = "limits"

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def feed(self, kill: int, kills: int) -> None:
        calls = [
            self._draw.choice(rules_app.limited)
            .options(job_id=f"limited-{kill:04}-{place}")
            .call(self._draw.choice(CUSTOMERS))
            for place in range(LIMITED_FOR_EACH_KILL)
        ]
        self.enqueue(calls)

    def wrong(self, records: Records) -> Iterator[str]:
        yield from rules_audit.limits(records, app.limits)

    def summary(self, records: Records) -> str:
        most = rules_audit.most_used(records)
        full = sum(held == app.limits[use.name].places for use, held in most.items())
        return f"{len(self._ids)} jobs under {len(most)} limits, {full} of which were full, none was exceeded"


class BacklogPart(JobsPart):
    """Limits of one and of five places, and a rate, for which jobs wait at every moment."""

    name = "backlog"

    def feed(self, kill: int, kills: int) -> None:
        calls = [
            kind.options(job_id=f"{limit}-{kill:04}-{place}").call("")
            for limit, (kind, count) in rules_app.backlog.items()
            for place in range(count if kill else 3 * count)
        ]
        self.enqueue(calls)

    def wrong(self, records: Records) -> Iterator[str]:
        yield from rules_audit.limits(records, app.limits)
        held = rules_audit.most_used(records)
        for name in ("one", "five"):
            if held[LimitUse(name)] != app.limits[name].places:
                yield f"limit {name} was never full: nothing was shown"

    def summary(self, records: Records) -> str:
        leases = rules_audit.leases_under_limits(records)
        one, five, rated = (leases[LimitUse(name)] for name in rules_app.backlog)
        expired = sum(lease.reason in (AbortReason.EXPIRED, AbortReason.DIED) for lease in (*one, *five))
        return (
            f"{len(one)} leases under a limit of 1 and {len(five)} under one of 5, both full, none exceeded "
            f"although {expired} leases were left to expire; {len(rated)} under a rate, none early"
        )


class SchedulesPart:
    """Schedules that every worker declares when it starts; each tick is one job."""

    name = "schedules"

    def __init__(self, store: Store) -> None:
        self._store = store

    def feed(self, kill: int, kills: int) -> None:
        """Workers fire the ticks."""

    def settle(self) -> None:
        for schedule in list_schedules(self._store):
            if schedule.pause is None and schedule.fired:  # each of them was at work
                pause_schedule(self._store, schedule.spec.name, by="lab", reason="enough")

    def has_settled(self) -> bool:
        found = list_schedules(self._store)
        return len(found) == len(INTERVALS_S) and all(schedule.pause is not None for schedule in found)

    def expected(self, records: Records) -> Iterator[str]:
        for schedule in records.schedules.values():
            yield from rules_audit.ids_of_schedule(schedule, INTERVALS_S[schedule.spec.name])

    def wrong(self, records: Records) -> Iterator[str]:
        yield from rules_audit.schedules(records, INTERVALS_S)

    def summary(self, records: Records) -> str:
        ticks = sum(schedule.fired for schedule in records.schedules.values())
        return f"{len(records.schedules)} schedules, {ticks} ticks, each one job"
