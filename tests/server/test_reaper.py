"""The server's reaper: leases are recovered, counted and logged although no worker of ours runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.server.app import ServerApp
from leasemill.server.reaper import KEPT, KEPT_S, ExpiredLeases
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.wire.expired import LISTENS, read
from tests.lab.http_server import ServerThread


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore(clock) as store:
        yield store


def metrics(http: httpx.Client) -> dict[str, float]:
    lines = [line for line in http.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def leave_expired(store: MemoryStore, clock: ManualClock, *job_ids: str) -> None:
    store.enqueue([JobSpec(job_id, "q", "k") for job_id in job_ids])
    assert len(store.claim("ghost", ["q"], len(job_ids))) == len(job_ids)
    clock.advance(s=31)


@rule("L7")
def test_the_server_recovers_what_has_expired_where_nobody_claims(
    app: ServerApp, store: MemoryStore, clock: ManualClock, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    leave_expired(store, clock, "x")
    app.reaper.run()
    assert store.totals().counts[JobState.READY] == 1
    found = metrics(http)
    assert found["leasemill_reaper_runs_total"] == 1
    assert found["leasemill_reaper_recovered_total"] == 1
    assert found["leasemill_reaper_recovered_last_run"] == 1
    assert found['leasemill_leases_expired_total{state="ready"}'] == 1
    assert found["leasemill_reaper_stale_duration_seconds_sum"] == 1
    (line,) = [record for record in caplog.records if record.message.startswith("lease of worker ghost on job x")]
    assert line.levelno == logging.WARNING
    app.reaper.run()
    assert metrics(http)["leasemill_reaper_recovered_total"] == 1


@rule("L7")
def test_what_a_claim_over_http_recovers_is_counted_by_the_server(
    app: ServerApp, store: MemoryStore, clock: ManualClock, http: httpx.Client
) -> None:
    """Clients in other languages listen to nothing."""
    leave_expired(store, clock, "x")
    store.enqueue([JobSpec("other", "q", "k")])
    answer = http.post("/v1/claim", json={"worker": "sh", "queues": ["q"], "limit": 1}).json()
    assert [lease["job"]["id"] for lease in answer] == ["x"]
    assert metrics(http)["leasemill_reaper_recovered_total"] == 1


def test_what_a_worker_that_listens_comes_for_is_left_to_it(
    app: ServerApp, store: MemoryStore, clock: ManualClock, http: httpx.Client
) -> None:
    listens = {LISTENS: "1"}
    http.post("/v1/get_totals", json={}, headers=listens)
    leave_expired(store, clock, "x")
    app.reaper.run()
    answer = http.post("/v1/get_totals", json={}, headers=listens)
    assert [one.job_id for one in read(answer.headers["leasemill-expired"])] == ["x"]
    assert metrics(http)["leasemill_reaper_recovered_total"] == 0


def test_what_no_worker_comes_for_in_time_is_counted_by_the_server(store: MemoryStore, clock: ManualClock) -> None:
    now = [0.0]
    expired = ExpiredLeases(store, lambda: now[0])
    left: list[c.Expiration] = []
    expired.left.listen(left.extend)
    assert expired.take() is None, "a worker listens"
    leave_expired(store, clock, "x")
    store.expire()
    assert left == []
    now[0] = KEPT_S
    expired.sweep()
    assert [one.job_id for one in left] == ["x"]
    assert expired.take() is None, "it is counted"


def test_more_than_are_kept_are_counted_by_the_server(store: MemoryStore, clock: ManualClock) -> None:
    expired = ExpiredLeases(store)
    left: list[c.Expiration] = []
    expired.left.listen(left.extend)
    expired.take()
    leave_expired(store, clock, *(f"job-{number}" for number in range(KEPT + 5)))
    store.expire(2 * KEPT)
    assert len(left) == 5
    expired.close()
    assert len(left) == KEPT + 5, "what is left when the server ends"


def test_what_the_store_recorded_before_the_server_was_there_is_counted(
    server: ServerThread, store: MemoryStore, clock: ManualClock
) -> None:
    leave_expired(store, clock, "x")
    store.expire()
    with server.serving(store) as app:
        app.reaper.run()
        assert app.reaper.metrics.reaper_recovered == 1
