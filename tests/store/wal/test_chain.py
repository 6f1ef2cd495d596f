"""A crowd of threads that ask again at once is woken in a chain, and nobody depends on another's coming back."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from leasemill.store.wal import pipeline
from leasemill.store.wal.pipeline import Pipeline, Ticket

LONG_S = 20.0
CROWD = 6


class Stopped(BaseException):
    """What a signal's handler raises."""


class Echo:
    """A pipeline that answers each command with itself. The first batch is held until `go` is set; the caller that
    leads it is `first`, the others of the crowd come behind it, all of them in haste."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.held, self.go = threading.Event(), threading.Event()
        self.answers: dict[int, object] = {}
        self.threads: list[threading.Thread] = []
        self.pipeline = Pipeline(self._carry_out, "echo")

    def _carry_out(self, batch: list[Ticket]) -> None:
        self.batches.append([ticket.command for ticket in batch])
        if not self.held.is_set():
            self.held.set()
            assert self.go.wait(LONG_S)
        for ticket in batch:
            ticket.answer = ticket.command

    def call(self, command: int) -> None:
        self.answers[command] = self.pipeline.run(Ticket(command))

    def in_thread(self, *commands: int) -> None:
        def run() -> None:
            for command in commands:
                self.call(command)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def wait_for(self, waiting: int) -> None:
        until = time.monotonic() + LONG_S
        while len(self.pipeline._waiting) < waiting:
            assert time.monotonic() < until
            time.sleep(0.001)

    def finish(self) -> None:
        for thread in self.threads:
            thread.join(LONG_S)
            assert not thread.is_alive(), "a caller is stranded"


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Echo]:
    monkeypatch.setattr(pipeline, "HASTE_S", math.inf)
    echo = Echo()
    yield echo
    echo.go.set()
    echo.finish()


def held_crowd(echo: Echo, others: int = CROWD - 1) -> None:
    """One caller in its batch, the others waiting behind it."""
    echo.in_thread(0)
    assert echo.held.wait(LONG_S)
    for number in range(1, others + 1):
        echo.in_thread(number)
        echo.wait_for(number)


def chain_of(echo: Echo) -> list[int]:
    return [ticket.command for ticket in echo.pipeline._chain]


def test_each_that_comes_back_wakes_the_next_and_the_last_leads(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE_S", 10 * LONG_S)
    held_crowd(echo)
    echo.go.set()
    echo.threads[0].join(LONG_S)
    echo.threads[1].join(LONG_S)  # took the lead of the second batch, for itself and the four that make the chain
    assert echo.batches == [[0], [1, 2, 3, 4, 5]]
    assert chain_of(echo) == [2, 3, 4, 5]
    for number in (12, 13, 14):
        echo.in_thread(number)
        echo.wait_for(number - 11)
        echo.threads[number - 10].join(LONG_S)
        assert echo.answers[number - 10] == number - 10
    assert chain_of(echo) == [5]
    assert len(echo.batches) == 2
    monkeypatch.setattr(pipeline, "HASTE_S", -1.0)  # the chain ends with a caller that begins no other
    echo.call(15)
    echo.finish()
    assert sorted(echo.batches[2]) == [12, 13, 14, 15]


@pytest.mark.parametrize("come_behind", [0, 1, 3])
def test_a_chain_that_is_not_carried_on_is_broken(echo: Echo, come_behind: int) -> None:
    held_crowd(echo)
    echo.go.set()
    for number in range(come_behind):
        echo.in_thread(100 + number)
    echo.finish()
    commands = [*range(CROWD), *range(100, 100 + come_behind)]
    assert echo.answers == {command: command for command in commands}
    assert sorted(command for batch in echo.batches for command in batch) == commands
    assert not echo.pipeline._chain
    assert not echo.pipeline._is_led


def test_a_coroutine_carries_a_chain_on_and_is_answered(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE_S", 10 * LONG_S)
    held_crowd(echo, others=3)
    echo.go.set()
    echo.threads[1].join(LONG_S)
    assert chain_of(echo) == [2, 3]

    async def ask(*commands: int) -> list[object]:
        calls = (echo.pipeline.arun(Ticket(command)) for command in commands)
        return await asyncio.wait_for(asyncio.gather(*calls), LONG_S)

    assert asyncio.run(ask(10, 11)) == [10, 11]
    echo.finish()
    echo.pipeline.close()
    assert echo.answers == {command: command for command in range(4)}


def test_a_coroutine_does_not_depend_on_a_chain_that_is_not_carried_on(echo: Echo) -> None:
    held_crowd(echo)

    async def ask() -> object:
        asked = asyncio.ensure_future(echo.pipeline.arun(Ticket(10)))
        await asyncio.to_thread(echo.wait_for, CROWD)
        echo.go.set()
        await asyncio.wait_for(asked, LONG_S)
        return await asyncio.wait_for(echo.pipeline.arun(Ticket(11)), LONG_S)

    assert asyncio.run(ask()) == 11
    echo.finish()
    echo.pipeline.close()


def test_a_caller_interrupted_in_a_chain_strands_nobody(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "PATIENCE_S", 10 * LONG_S)

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped

    def interrupt() -> None:
        echo.wait_for(4)
        echo.go.set()
        echo.threads[1].join(LONG_S)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        held_crowd(echo, others=3)
        interrupting = threading.Thread(target=interrupt, daemon=True)
        interrupting.start()
        with pytest.raises(Stopped):
            echo.call(4)
    finally:
        signal.signal(signal.SIGUSR1, before)
    interrupting.join(LONG_S)
    echo.finish()
    assert echo.answers == {command: command for command in range(4)}
    assert not echo.pipeline._is_led


def test_callers_not_in_haste_are_woken_at_once(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "HASTE_S", -1.0)
    held_crowd(echo)
    echo.go.set()
    echo.finish()
    assert echo.answers == {command: command for command in range(CROWD)}


def test_many_threads_in_haste_each_get_their_own_answers(echo: Echo) -> None:
    echo.held.set()
    rounds = 200
    for number in range(CROWD):
        echo.in_thread(*range(number * rounds, (number + 1) * rounds))
    echo.finish()
    assert echo.answers == {command: command for command in range(CROWD * rounds)}
    assert sorted(command for batch in echo.batches for command in batch) == list(range(CROWD * rounds))
