"""Threads that nobody waits for."""

from __future__ import annotations

import os
import threading

import pytest

from leasemill.store.threads import Threads
from tests.lab.forks import forked


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


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own_whichever_of_its_callers_comes_first() -> None:
    threads = Threads(1, "forked")
    assert threads.submit(lambda: 1).result(10) == 1
    parents = threads._work
    assert forked(lambda: threads._work is not parents)  # before anybody asks
    with parents.lock:
        assert forked(lambda: threads.submit(lambda: 2).result(10) == 2)
    assert threads.submit(lambda: 3).result(10) == 3
    threads.close()
    assert forked(lambda: threads.submit(lambda: 4).cancelled())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_closes_them_although_a_thread_of_its_parent_held_the_lock() -> None:
    threads = Threads(1, "forked")

    def is_closed() -> bool:
        threads.close()
        threads.join(0.0)
        return threads.submit(lambda: 1).cancelled()

    with threads._work.lock:
        assert forked(is_closed)
    assert threads.submit(lambda: 1).result(10) == 1
    threads.close()
