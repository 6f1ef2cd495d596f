"""Threads that nobody waits for."""

from __future__ import annotations

import os
import threading

import pytest

from leasemill.store.threads import Threads


def test_a_call_that_never_returns_does_not_keep_the_others_waiting_nor_the_process() -> None:
    threads, never = Threads(2, "t"), threading.Event()
    stuck = threads.submit(never.wait)
    assert [threads.submit(lambda number=number: number).result(10) for number in range(20)] == list(range(20))
    threads.submit(never.wait)
    waiting = threads.submit(lambda: 1)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("t-"))
    threads.close()
    assert waiting.cancelled()
    assert threads.submit(lambda: 1).cancelled()
    threads.join(0.0)
    assert not stuck.done()
    never.set()
    assert stuck.result(10)


def test_no_more_threads_are_started_than_are_needed_or_allowed() -> None:
    threads, gate = Threads(3, "few"), threading.Event()
    for number in range(50):
        assert threads.submit(lambda number=number: number).result(10) == number
    held = [threads.submit(gate.wait) for _ in range(9)]
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("few-")]
    assert len(names) == 3
    gate.set()
    assert all(one.result(10) for one in held)
    threads.close()


def test_an_error_of_a_call_is_its_callers() -> None:
    threads = Threads(1, "e")
    failing = threads.submit(os.stat, "/no/such/file")
    with pytest.raises(FileNotFoundError):
        failing.result(10)
    assert threads.submit(lambda: 1).result(10) == 1
    threads.close()
