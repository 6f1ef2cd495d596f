"""How long the listener pauses before it listens again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from leasemill.store.notifications import Signal
from leasemill.store.postgres.waking import listen
from leasemill.store.postgres.waking.listen import FIRST_PAUSE_S, LONGEST_PAUSE_S, Listener


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Sessions:
    """In place of a driver and of its connections."""

    @property
    def connections(self) -> Sessions:
        return self

    @contextmanager
    def connect(self) -> Iterator[None]:
        yield


class Interrupted(Listener):
    """Its sessions last as long as `lasting_s` says, one after the other; then it is closed."""

    def __init__(self, time: Time, lasting_s: list[float]) -> None:
        super().__init__(Sessions(), "leasemill_jobs", Signal(), is_enabled=True)  # type: ignore[arg-type]
        self._time = time
        self._lasting = iter(lasting_s)
        self.pauses_s: list[float] = []

    def _listen(self, connection: Any, woken: Any) -> None:
        self.is_listening.set()
        self._time.now_s += next(self._lasting)
        raise psycopg.OperationalError("terminating connection")

    def _pause(self, woken: Any, until_s: float) -> None:
        self.pauses_s.append(until_s - self._time.now_s)
        self._is_closed = len(self.pauses_s) == 10


@pytest.mark.parametrize(("lasting_s", "longest_s"), [(60.0, FIRST_PAUSE_S), (0.0, LONGEST_PAUSE_S)])
def test_a_session_that_lasted_is_replaced_soon_and_one_that_did_not_later_each_time(
    monkeypatch: pytest.MonkeyPatch, lasting_s: float, longest_s: float
) -> None:
    time = Time()
    monkeypatch.setattr(listen, "time", time)
    listener = Interrupted(time, [lasting_s] * 10)
    listener._run(None)  # type: ignore[arg-type]
    assert longest_s / 2 <= listener.pauses_s[-1] <= longest_s
