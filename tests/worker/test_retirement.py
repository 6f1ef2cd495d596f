"""When a process has done as much as it may."""

from __future__ import annotations

import logging
import os
from typing import cast

import psutil
import pytest

from leasemill.kernel.commands import Lease
from leasemill.worker import process
from leasemill.worker.process import Retirement


class FakeLease:
    worker = "mill.1"


def ended(subject: Retirement) -> None:
    subject.run_ended(cast(Lease, FakeLease()), 0.1)


def test_after_so_many_jobs_it_is_enough_and_this_is_noticed_once() -> None:
    calls: list[int] = []
    subject = Retirement(3, None)
    subject.on_enough = lambda: calls.append(1)
    for expected in (0, 0, 1, 1, 1):
        ended(subject)
        assert len(calls) == expected


def test_memory_is_looked_at_between_jobs_but_not_after_each_of_many(caplog: pytest.LogCaptureFixture) -> None:
    used, now, looks, calls = 400_000_000, 100.0, 0, 0

    def memory_used() -> int:
        nonlocal looks
        looks += 1
        return used

    def on_enough() -> None:
        nonlocal calls
        calls += 1

    subject = Retirement(None, 500_000_000, memory_used=memory_used, monotonic=lambda: now)
    subject.on_enough = on_enough
    for _ in range(10):
        ended(subject)
    assert (looks, calls) == (1, 0)
    used, now = 600_000_000, now + process.LOOK_S
    with caplog.at_level(logging.INFO):
        ended(subject)
    assert (looks, calls) == (2, 1)
    assert "it uses 600 MB of memory, more than 500 MB" in caplog.text


def test_the_memory_of_this_process_is_what_the_system_reports() -> None:
    reported = psutil.Process(os.getpid()).memory_info().rss
    assert process.resident_bytes() == pytest.approx(reported, rel=0.2)
