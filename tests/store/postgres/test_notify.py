"""Who notifies of new jobs, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from leasemill.store.notifications import Signal
from leasemill.store.postgres.waking import notify
from leasemill.store.postgres.waking.notify import BURST, Notifier
from tests.lab.processes import wait_until

CHANNEL = "leasemill_test"


class Sends:
    """Counts notifications from the thread; each waits until it is let through."""

    def __init__(self) -> None:
        self.count = 0
        self.is_let_through = threading.Event()
        self.is_let_through.set()

    def __call__(self) -> None:
        self.count += 1
        self.is_let_through.wait(60)


@pytest.fixture
def sends() -> Sends:
    return Sends()


@pytest.fixture
def notifier(sends: Sends) -> Iterator[Notifier]:
    made = Notifier(CHANNEL, Signal(), sends)
    yield made
    made.stop()
    made.join(time.monotonic() + 60)


def use_up(notifier: Notifier) -> None:
    """Until a call is held back."""
    for _ in range(BURST):
        assert notifier.channel() == CHANNEL
    wait_until(lambda: notifier.channel() is None, "a call that is held back")


def test_a_few_calls_in_a_row_notify_themselves(
    notifier: Notifier, sends: Sends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "REFILL_S", 3600.0)
    assert [notifier.channel() for _ in range(BURST)] == [CHANNEL] * BURST
    assert sends.count == 0


def test_for_those_held_back_a_thread_notifies_and_once_more_for_one_that_commits_late(
    notifier: Notifier, sends: Sends
) -> None:
    sends.is_let_through.clear()
    use_up(notifier)
    wait_until(lambda: sends.count == 1, "a notification")
    sends.is_let_through.set()
    wait_until(lambda: sends.count >= 2, "another one, though nothing came")


def test_when_nothing_more_comes_the_thread_waits(
    notifier: Notifier, sends: Sends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SOON_S", 0.0)
    use_up(notifier)
    wait_until(lambda: sends.count >= 2, "the last notification")
    count = sends.count
    time.sleep(5 * notify.REFILL_S)
    assert sends.count <= count + 1  # if calls were held back in two windows
    notifier.stop()
    notifier.join(time.monotonic() + 60)
    assert not [it for it in threading.enumerate() if it is notifier._thread]


def test_after_the_end_each_call_notifies_itself_and_no_thread_starts(
    notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "REFILL_S", 3600.0)
    notifier.stop()
    assert [notifier.channel() for _ in range(2 * BURST)] == [CHANNEL] * (2 * BURST)
    assert notifier._thread is None
