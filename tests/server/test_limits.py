"""How much one client may ask for: buckets, open requests, bytes."""

from __future__ import annotations

import pytest

from leasemill.server import limits as module
from leasemill.server.limits import Bucket, Meter, ServerLimits
from leasemill.wire.problems import Denied


class StillTime:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> StillTime:
    return StillTime()


def meter(time: StillTime, **limits: float) -> Meter:
    return Meter(ServerLimits(**limits), time)  # type: ignore[arg-type]


def enter(of: Meter, who: str = "ci", *, is_poll: bool = False, body_bytes: int = 0) -> None:
    of.enter(who, is_poll=is_poll, body_bytes=body_bytes)


def refused(of: Meter, who: str = "ci", *, is_poll: bool = False, body_bytes: int = 0) -> tuple[int, str]:
    with pytest.raises(Denied) as denied:
        enter(of, who, is_poll=is_poll, body_bytes=body_bytes)
    return denied.value.problem.status, dict(denied.value.headers)["retry-after"]


def test_a_bucket_gives_a_burst_and_then_its_rate(time: StillTime) -> None:
    bucket = Bucket(2.0, 3, time())
    assert [bucket.take(time()) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    time.now += 0.5
    assert bucket.take(time()) == 0.0
    time.now += 1_000
    assert [bucket.take(time()) for _ in range(4)][-1] == 0.5
    time.now -= 1_000
    assert bucket.take(time()) > 0  # a clock that goes back gives nothing


def test_one_client_s_rate_is_its_own(time: StillTime) -> None:
    of = meter(time, requests_per_s=0.1, burst=2)
    for _ in range(2):
        enter(of)
    assert refused(of) == (429, "10")
    enter(of, "other")
    time.now += 10
    enter(of)


def test_open_requests_and_those_that_wait_are_counted(time: StillTime) -> None:
    of = meter(time, open_requests=3, open_polls=1)
    enter(of, is_poll=True)
    assert refused(of, is_poll=True) == (429, "1")
    enter(of)
    enter(of)
    assert refused(of) == (429, "1")
    enter(of, "other", is_poll=True)
    of.leave("ci", is_poll=True, body_bytes=0)
    enter(of, is_poll=True)


def test_a_refused_request_takes_no_place(time: StillTime) -> None:
    of = meter(time, open_requests=1, requests_per_s=1, burst=1)
    enter(of)
    of.leave("ci", is_poll=False, body_bytes=0)
    assert refused(of)[0] == 429
    time.now += 1
    enter(of)


def test_bodies_have_a_budget_of_all_clients(time: StillTime) -> None:
    of = meter(time, bodies_bytes=100)
    enter(of, "one", body_bytes=60)
    assert refused(of, "two", body_bytes=60) == (503, "1")
    enter(of, "two", body_bytes=40)
    of.leave("one", is_poll=False, body_bytes=60)
    enter(of, "three", body_bytes=60)


def test_nobody_in_particular_is_limited_by_bytes_alone(time: StillTime) -> None:
    of = meter(time, open_requests=1, open_polls=1, requests_per_s=1, burst=1, bodies_bytes=10)
    for _ in range(5):
        of.enter(None, is_poll=True, body_bytes=2)
    with pytest.raises(Denied):
        of.enter(None, is_poll=False, body_bytes=1)
    of.leave(None, is_poll=True, body_bytes=2)
    of.enter(None, is_poll=False, body_bytes=1)


def test_however_many_keys_there_were_a_bounded_number_is_remembered(
    time: StillTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEYS_KEPT", 10)
    of = meter(time)
    for number in range(1_000):
        enter(of, f"key {number}")
        of.leave(f"key {number}", is_poll=False, body_bytes=0)
    assert (len(of._buckets), of._open, of._polls, of._bytes) == (10, {}, {}, 0)
