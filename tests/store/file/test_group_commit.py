"""Callers of one process share appends and syncs: every answer is right, and nobody is hurt by another's end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest

from leasemill.errors import Broken, Invalid, LeasemillError, QueueRefused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.events import JobEnqueued
from leasemill.kernel.machine import APPLIERS, run
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.kernel.state import State
from leasemill.kernel.verbs import enqueue
from leasemill.store.file.format import encode_events
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.store.file.tickets import LogTicket, weigh
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.lab import disk_of, log_of, open_simulated
from tests.crash.walk import Model, Walk
from tests.lab.faults import Operation, SimulatedDisk, SimulatedMachine

CALLERS = 32
LONG_S = 20.0
SMALL_HEADER = 8


class Stopped(BaseException):
    """What a signal's handler raises."""


def job(job_id: str, queue: str = "q") -> JobSpec:
    return JobSpec(job_id, queue, "k")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    with FileStore(tmp_path, options=FileOptions(segment_bytes=64 * 1024)) as store:
        yield store


@contextmanager
def counted_appends(store: FileStore) -> Iterator[list[int]]:
    """How many events each append had."""
    log, sizes = log_of(store), list[int]()
    append = log.append

    def counting(events: list[object], *given: int, **named: bool) -> int:
        sizes.append(len(events))
        return append(events, *given, **named)  # type: ignore[arg-type]

    log.append = counting  # type: ignore[method-assign,assignment]
    try:
        yield sizes
    finally:
        log.append = append  # type: ignore[method-assign]


def one_life(store: FileStore, name: str) -> None:
    """Enqueue, claim in a queue of one's own, ack."""
    assert store.enqueue([job(name, name)]) == [c.Enqueued(name)]
    assert store.enqueue([job(name, name)]) == [c.Duplicate(name)]
    (lease,) = store.claim(name, [name], 1)
    assert lease.job.id == name
    assert store.ack([c.AckReport(name, lease.token)]) == [c.Acked(name)]


async def one_life_async(store: FileStore, name: str) -> None:
    assert await store.arun(c.Enqueue([job(name, name)])) == [c.Enqueued(name)]
    assert await store.arun(c.Enqueue([job(name, name)])) == [c.Duplicate(name)]
    (lease,) = await store.arun(c.Claim(name, [name], 1, [f"token {name}"], f"request {name}"))
    assert lease.job.id == name
    assert await store.arun(c.Ack([c.AckReport(name, lease.token)])) == [c.Acked(name)]


async def many_lives(store: FileStore, prefix: str) -> None:
    await asyncio.gather(*(one_life_async(store, f"{prefix}-{number}") for number in range(CALLERS)))


@rule("W1", "E1")
def test_many_threads_share_appends(store: FileStore) -> None:
    with counted_appends(store) as sizes, ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda number: one_life(store, f"t-{number}"), range(CALLERS)))
    assert store.totals().counts[JobState.SUCCEEDED] == CALLERS
    assert len(sizes) < CALLERS * 3  # a duplicate appends nothing


@rule("W1", "E1")
def test_many_coroutines_share_appends(store: FileStore) -> None:
    with counted_appends(store) as sizes:
        asyncio.run(many_lives(store, "a"))
    assert store.totals().counts[JobState.SUCCEEDED] == CALLERS
    assert len(sizes) <= CALLERS


@rule("W1", "E1")
def test_threads_and_two_event_loops_share_one_store(store: FileStore) -> None:
    loops = [threading.Thread(target=lambda name=name: asyncio.run(many_lives(store, name))) for name in ("a", "b")]
    with counted_appends(store) as sizes, ThreadPoolExecutor(CALLERS) as pool:
        for loop in loops:
            loop.start()
        list(pool.map(lambda number: one_life(store, f"t-{number}"), range(CALLERS)))
        for loop in loops:
            loop.join(LONG_S)
    assert store.totals().counts[JobState.SUCCEEDED] == 3 * CALLERS
    assert len(sizes) < 3 * CALLERS * 3


@rule("E6")
def test_a_refused_call_costs_its_neighbours_nothing(store: FileStore) -> None:
    store.acquire([c.AcquireRequest("offsets", "lane", 1, "worker", "token")])

    async def overlap() -> list[object]:
        calls: list[Awaitable[object]] = [store.arun(c.Enqueue([job(f"j-{number}")])) for number in range(10)]
        calls.insert(5, store.arun(c.Enqueue([job("wrong", "offsets")])))
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(overlap())
    assert isinstance(answers.pop(5), QueueRefused)
    assert answers == [[c.Enqueued(f"j-{number}")] for number in range(10)]


class Held:
    """A store on a simulated disk whose next sync waits, with a caller in it; others come behind it."""

    def __init__(self, folder: Path) -> None:
        self.machine = SimulatedMachine()
        self.store = open_simulated(self.machine, folder)
        self.store.totals()
        self.reached, self.go = threading.Event(), threading.Event()
        self.then: Callable[[int], None] = lambda _: None
        self.syncs = 0
        self.outcomes: dict[str, object] = {}
        self.threads: list[threading.Thread] = []
        self.machine.before = self._before

    def _before(self, _disk: SimulatedDisk, operation: Operation, _name: str) -> None:
        if operation is Operation.SYNC:
            self.syncs += 1
            if self.syncs == 1:
                self.reached.set()
                assert self.go.wait(LONG_S)
            self.then(self.syncs)

    def call(self, name: str) -> None:
        """In a thread of its own."""

        def run() -> None:
            try:
                self.outcomes[name] = self.store.enqueue([job(name)])
            except BaseException as error:  # noqa: BLE001  (whatever the caller would see)
                self.outcomes[name] = error

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def wait_for_waiting(self, count: int) -> None:
        until = time.monotonic() + LONG_S
        while len(self.store._pipeline._waiting) < count:
            assert time.monotonic() < until
            time.sleep(0.001)

    def finish(self) -> None:
        self.go.set()
        for thread in self.threads:
            thread.join(LONG_S)
            assert not thread.is_alive(), "a caller is stranded"


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path)


@rule("W1")
def test_an_interrupted_leader_strands_nobody(held: Held) -> None:
    def interrupt(sync: int) -> None:
        if sync == 2:
            raise KeyboardInterrupt

    held.then = interrupt
    held.call("first")
    assert held.reached.wait(LONG_S)
    for number in range(5):
        held.call(f"behind-{number}")
    held.wait_for_waiting(5)
    held.finish()
    behind = [held.outcomes[f"behind-{number}"] for number in range(5)]
    assert held.outcomes["first"] == [c.Enqueued("first")]
    assert sorted(type(outcome).__name__ for outcome in behind) == ["KeyboardInterrupt"] + 4 * ["Unavailable"]
    for number in range(5):
        (again,) = held.store.enqueue([job(f"behind-{number}")])
        assert again in (c.Enqueued(f"behind-{number}"), c.Duplicate(f"behind-{number}"))


@rule("W1")
def test_a_caller_interrupted_while_it_waits_is_not_handed_the_lead(held: Held) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        held.call("first")
        assert held.reached.wait(LONG_S)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(Stopped):
            held.store.enqueue([job("interrupted")])
    finally:
        signal.signal(signal.SIGUSR1, before)
    held.call("behind")
    held.wait_for_waiting(1)
    held.finish()
    assert held.outcomes == {"first": [c.Enqueued("first")], "behind": [c.Enqueued("behind")]}
    assert held.store.job("interrupted") is None


def test_a_coroutine_that_is_cancelled_costs_its_neighbours_nothing(held: Held) -> None:
    async def overlap() -> object:
        held.call("first")
        await asyncio.to_thread(held.reached.wait, LONG_S)
        gone = asyncio.ensure_future(held.store.arun(c.Enqueue([job("gone")])))
        behind = asyncio.ensure_future(held.store.arun(c.Enqueue([job("behind")])))
        await asyncio.to_thread(held.wait_for_waiting, 2)
        gone.cancel()
        held.go.set()
        return await asyncio.wait_for(behind, LONG_S)

    assert asyncio.run(overlap()) == [c.Enqueued("behind")]
    held.finish()


def test_a_loop_that_ended_costs_its_neighbours_nothing(held: Held) -> None:
    async def leave() -> None:
        asyncio.ensure_future(held.store.arun(c.Enqueue([job("left")])))  # noqa: RUF006  (nobody waits for it)
        await asyncio.to_thread(held.wait_for_waiting, 1)

    held.call("first")
    assert held.reached.wait(LONG_S)
    asyncio.run(leave())
    held.call("behind")
    held.wait_for_waiting(2)
    held.finish()
    assert held.outcomes["behind"] == [c.Enqueued("behind")]


def test_an_error_in_the_thread_that_leads_for_loops_ends_nothing_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    machine = SimulatedMachine()
    store = open_simulated(machine, tmp_path)

    def fail_once(_disk: SimulatedDisk, _operation: Operation, _name: str) -> None:
        machine.before = None
        raise ArithmeticError

    async def calls() -> object:
        machine.before = fail_once
        with pytest.raises(Unavailable, match="interrupted by ArithmeticError"):
            await asyncio.wait_for(store.arun(c.Enqueue([job("first")])), LONG_S)
        return await asyncio.wait_for(store.arun(c.Enqueue([job("second")])), LONG_S)

    assert asyncio.run(calls()) == [c.Enqueued("second")]
    store.close()


def test_a_closed_store_refuses_coroutines_too(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store = open_simulated(machine, tmp_path)

    async def calls() -> None:
        await store.arun(c.Enqueue([job("first")]))
        store.close()
        for _ in range(2):
            with pytest.raises(Unavailable, match="closed"):
                await asyncio.wait_for(store.arun(c.Enqueue([job("second")])), LONG_S)

    asyncio.run(calls())


def test_closing_waits_for_the_calls_that_are_under_way(held: Held) -> None:
    held.call("first")
    assert held.reached.wait(LONG_S)
    closing = threading.Thread(target=held.store.close)
    closing.start()
    held.wait_for_waiting(1)
    held.finish()
    closing.join(LONG_S)
    assert held.outcomes["first"] == [c.Enqueued("first")]
    assert held.store._replica.log is None


@rule("E6")
def test_a_call_that_is_too_large_for_the_log_is_refused_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.store.file.tickets.HEAVIEST_CALL", 50_000)
    store = open_simulated(SimulatedMachine(), tmp_path)
    store.totals()
    replica = store._replica.state

    async def overlap() -> tuple[object, object]:
        large = store.arun(c.Enqueue([job(f"j-{number}") for number in range(100)]))
        return await asyncio.gather(large, store.arun(c.Enqueue([job("small")])), return_exceptions=True)

    refused, answer = asyncio.run(overlap())
    assert isinstance(refused, Invalid)
    assert "send smaller batches" in str(refused)
    assert answer == [c.Enqueued("small")]
    assert store.totals().seq == 1
    assert store._replica.state is replica


@pytest.mark.parametrize("seed", range(10))
def test_no_call_adds_more_to_the_log_than_it_weighs(seed: int) -> None:
    source, clock, model = random.Random(seed), ManualClock(), Model()
    walk = Walk(source, payload_bytes=(0, 20, 30_000))
    for _ in range(300):
        command = walk.next(model.state)
        with suppress(LeasemillError):
            events, _ = run(model.state, command, clock.now())
            assert len(encode_events(events)) <= weigh(command) + SMALL_HEADER
        clock.advance(us=source.choice((0, 1_000, 3_000_000)))


@pytest.mark.parametrize(
    "command",
    [
        c.Claim("w", ["q"], 2, ["t" * 90_000, "u" * 90_000], "r"),
        c.Start([c.StartReport("a", "ä" * 90_000)]),
        c.Extend([c.LeaseRef("a", "ä" * 90_000)]),
        c.Commit("a", "x" * 90_000, b'"%b"' % (b"x" * 90_000), [c.Followup("q", "k", b'"%b"' % (b"x" * 90_000))]),
        c.Ack([c.AckReport("a", "old", b'"%b"' % (b"x" * 90_000)), c.AckReport("b", "ä" * 90_000)]),
        c.Nack([c.NackReport("a", "old", "ä" * 90_000, keep_lease=True, report_id="ö" * 90_000)]),
        c.Release([c.ReleaseReport("a", "old", error="ä" * 90_000)]),
        c.Acquire([c.AcquireRequest("o", "ä" * 200, 1, "w", "ä" * 90_000, payload=b'"%b"' % (b"x" * 90_000))]),
        c.Cancel(["a", "b"], "ä" * 200, "ä" * 1_000),
        c.SetPolicy("q", Policy(max_retries=1), "ä" * 200, "ä" * 1_000),
    ],
    ids=lambda command: type(command).__name__,
)
def test_what_has_no_small_limit_is_weighed(command: c.Command[object]) -> None:
    state = State()
    run(state, c.Enqueue([job("a"), job("b"), job("c"), job("d")]), 0)
    run(state, c.Claim("w", ["q"], 2, ["old", "older"], "first"), 1)
    events, _ = run(state, command, 2)
    assert events
    assert len(encode_events(events)) <= weigh(command) + SMALL_HEADER


@rule("W11")
def test_who_gives_up_waiting_for_the_lock_keeps_what_it_has_read(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    holder, store = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path)
    store.enqueue([job("first")])
    replica = store._replica.state
    with log_of(holder).locked(), pytest.raises(Unavailable, match="has held the lock"):
        store.enqueue([job("second")])
    assert store.enqueue([job("second")]) == [c.Enqueued("second")]
    assert store._replica.state is replica


def test_callers_of_one_batch_get_error_objects_of_their_own(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store = open_simulated(machine, tmp_path)
    store.totals()
    machine.fail_sync_at(1, disk_of(store))
    tickets = [LogTicket(c.Enqueue([job(f"j-{number}")])) for number in range(3)]
    store._runner.run(tickets)
    errors = [ticket.error for ticket in tickets]
    for number, error in enumerate(errors):
        assert isinstance(error, Unavailable)
        assert isinstance(error.__cause__, OSError)
        error.add_note(f"of call {number}")
    assert len({str(error) for error in errors}) == 1
    assert [getattr(error, "__notes__", None) for error in errors] == [[f"of call {number}"] for number in range(3)]


@rule("W1")
def test_a_refusal_decided_before_a_failed_sync_is_not_given(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store = open_simulated(machine, tmp_path)
    store.acquire([c.AcquireRequest("offsets", "lane", 1, "worker", "token")])
    machine.fail_sync_at(1, disk_of(store))
    tickets = [LogTicket(c.Enqueue([job("good")])), LogTicket(c.Enqueue([job("refused", "offsets")]))]
    store._runner.run(tickets)
    assert [type(ticket.error) for ticket in tickets] == [Unavailable, Unavailable]
    with pytest.raises(QueueRefused):
        store.enqueue([job("refused", "offsets")])


@rule("E1")
def test_what_a_broken_decision_had_applied_is_not_taken_for_a_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the memory of this process alone: nothing may be decided on it."""
    jobs = [JobSpec(name, "q", "k") for name in ("whole", "half", "rest")]

    def apply(state: State, event: JobEnqueued) -> None:
        if event.job.id == "rest":
            raise Broken("an event that does not follow")
        enqueue.apply(state, event)

    with FileStore(tmp_path) as store:
        store.enqueue(jobs[:1])
        with monkeypatch.context() as patched:
            patched.setitem(APPLIERS, JobEnqueued, apply)
            with pytest.raises(Broken):
                store.enqueue(jobs[1:])
        assert store.job("whole") is not None
        assert store.job("half") is None
        assert store.enqueue(jobs[1:]) == [c.Enqueued("half"), c.Enqueued("rest")]
