"""When the reporter sends: ends that others wait for at once, those of jobs that have committed together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasemill import App
from leasemill.kernel import commands as c
from leasemill.worker import pacing
from leasemill.worker.handler import Ended
from leasemill.worker.metrics import Metrics
from leasemill.worker.policies import QueuePolicies
from leasemill.worker.reporter import Reporter
from leasemill.worker.run import Run
from leasemill.worker.settlement import Settlement
from leasemill.worker.slots import Slots
from leasemill.worker.store_loop import StoreLoop
from tests.worker.support import FaultyStore, settings_of, until

AT_HAND = 10


class Reported:
    """A reporter on a store with claimed jobs, while others wait for a slot."""

    def __init__(self, store: FaultyStore, app: App) -> None:
        self._store = store

        @app.job
        async def step() -> None: ...

        self._job = step
        self.extended = set[str]()
        """The tokens of leases whose extension is under way."""
        slots = Slots(1, Metrics())
        slots.queued.extend(cast(Any, [None] * AT_HAND))
        settings = settings_of(app)
        self.loop = StoreLoop(settings, QueuePolicies(settings, 0), lambda error: None)
        settlement = Settlement(settings, cast(Any, SimpleNamespace(succeeded=lambda run: None)), self.loop.wake)
        heartbeat = cast(Any, SimpleNamespace(admit=self._admit))
        self.reporter = Reporter(settings, heartbeat, settlement, self.loop.changed)
        runner = SimpleNamespace(slots=slots, set_aside=0, is_quiet=False)
        self.loop.connect(self.reporter, cast(Any, runner))

    def claimed(self, *, is_committed: bool, lane: str | None = None) -> Run:
        self._job.options(lane=lane).enqueue()
        *tokens, request = self._store.entropy.tokens(2)
        (lease,) = self._store.run(c.Claim("worker", ["default"], 1, tokens, request))
        run = Run(lease, cast(Any, self._job), 0.0)
        run.context = cast(Any, SimpleNamespace(is_committed=is_committed))
        return run

    def _admit(self, ends: list[Ended]) -> tuple[list[Ended], list[Ended]]:
        held = [end for end in ends if end[0].lease.token in self.extended]
        return [end for end in ends if end not in held], held

    def end(self, run: Run) -> None:
        self.reporter.send(run, c.AckReport(run.lease.job.id, run.lease.token))

    @property
    def batches(self) -> list[int]:
        return [len(one.reports) for one in self._store.commands(c.Ack)]


@pytest.fixture
async def reported(store: FaultyStore, app: App, monkeypatch: pytest.MonkeyPatch) -> Reported:
    monkeypatch.setattr(pacing, "FLUSH_WINDOW_S", 0.0)
    monkeypatch.setattr(pacing, "COMMITTED_WINDOW_S", 3600.0)
    return Reported(store, app)


async def test_ends_of_committed_jobs_wait_for_each_other_and_go_with_the_first_that_is_urgent(
    reported: Reported,
) -> None:
    for _ in range(3):
        reported.end(reported.claimed(is_committed=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert reported.batches == []
    reported.end(reported.claimed(is_committed=False))
    await until(lambda: reported.reporter.unreported == 0)
    assert reported.batches == [4]


async def test_the_end_of_a_committed_job_in_a_lane_does_not_wait(reported: Reported) -> None:
    reported.end(reported.claimed(is_committed=True, lane="a"))
    await until(lambda: reported.reporter.unreported == 0)
    assert reported.batches == [1]


async def test_ends_of_committed_jobs_are_sent_when_no_more_jobs_are_at_hand_than_they_are(reported: Reported) -> None:
    for _ in range(AT_HAND):
        reported.end(reported.claimed(is_committed=True))
    await until(lambda: reported.reporter.unreported == 0)
    assert reported.batches == [AT_HAND]


async def test_the_last_reports_wait_for_nothing(reported: Reported) -> None:
    reported.end(reported.claimed(is_committed=True))
    await reported.loop.send_last(asyncio.get_running_loop().time() + 30)
    assert reported.batches == [1]


async def test_an_end_that_waits_for_an_extension_is_sent_if_that_is_answered_while_others_are_sent(
    reported: Reported, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    extended, other = reported.claimed(is_committed=False), reported.claimed(is_committed=False)
    reported.extended.add(extended.lease.token)
    run = store.run

    def answered_meanwhile(command: c.Command[Any]) -> Any:
        reported.extended.clear()
        reported.reporter.extension_answered()  # as the heartbeat has it
        return run(command)

    monkeypatch.setattr(store, "run", answered_meanwhile)
    reported.end(extended)
    reported.end(other)
    await until(lambda: reported.reporter.unreported == 0)
    assert reported.batches == [1, 1]


async def test_nothing_is_sent_once_it_is_closed(reported: Reported, store: FaultyStore) -> None:
    first, second = reported.claimed(is_committed=False), reported.claimed(is_committed=False)
    store.is_away = True
    reported.end(first)
    await until(lambda: reported.batches)
    reported.end(second)
    reported.loop.close()
    sent = len(store.sent)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(store.sent) == sent
    assert not reported.loop.look().is_sending
