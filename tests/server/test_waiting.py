"""Calls that wait: they are answered when there is something, given up when their caller goes, and cheap."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.server.app import ServerApp
from leasemill.server.polls import Polls
from leasemill.store.memory import MemoryStore
from tests.lab.http_server import ServerThread

LIMIT_S = 30.0
CLAIM = {"worker": "w", "queues": ["mail"], "limit": 1, "wait_s": 30}


def until(condition: Any) -> None:
    ends = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)


def spec(job_id: str = "a", **fields: Any) -> JobSpec:
    return JobSpec(job_id, "mail", "send", **fields)


def asking(server: ServerThread, path: str, body: Any) -> socket.socket:
    """A client that has sent its request, and waits."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
    content = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def answer(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received or not received.rstrip().endswith((b"]", b"}")):
        chunk = connection.recv(65_536)
        assert chunk, received
        received += chunk
    return received.partition(b"\r\n\r\n")[2]


def test_a_claim_waits_for_a_job(http: httpx.Client, app: ServerApp, store: MemoryStore) -> None:
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(http.post, "/v1/claim", json=CLAIM)
        until(lambda: app.polls.open == 1)
        store.enqueue([spec()])
        (lease,) = waiting.result(LIMIT_S).json()
    assert lease["job"]["id"] == "a"
    assert app.polls.open == 0


def test_a_claim_finds_at_once_what_is_there(http: httpx.Client, store: MemoryStore) -> None:
    store.enqueue([spec()])
    assert len(http.post("/v1/claim", json=CLAIM).json()) == 1


def test_a_claim_that_waited_in_vain_is_answered_with_nothing(http: httpx.Client) -> None:
    assert http.post("/v1/claim", json=CLAIM | {"wait_s": 0.05}).json() == []


def test_a_claim_waits_for_a_job_that_becomes_due(http: httpx.Client, store: MemoryStore) -> None:
    store.enqueue([spec(delay_us=200_000)])
    assert len(http.post("/v1/claim", json=CLAIM).json()) == 1


def test_a_claim_waits_for_a_lease_to_expire(http: httpx.Client, store: MemoryStore) -> None:
    store.enqueue([spec(policy=Policy(lease_ttl_us=100_000))])
    assert len(store.claim("dead", ["mail"], 1)) == 1
    (lease,) = http.post("/v1/claim", json=CLAIM).json()
    assert lease["attempt"] == 2


def test_each_job_goes_to_one_of_many_who_wait(http: httpx.Client, app: ServerApp, store: MemoryStore) -> None:
    count = 20
    with ThreadPoolExecutor(count) as executor:
        waiting = [executor.submit(http.post, "/v1/claim", json=CLAIM | {"worker": f"w{n}"}) for n in range(count)]
        until(lambda: app.polls.open == count)
        store.enqueue([spec(f"job-{number}") for number in range(count)])
        leases = [lease for one in waiting for lease in one.result(LIMIT_S).json()]
    assert sorted(lease["job"]["id"] for lease in leases) == sorted(f"job-{number}" for number in range(count))


def test_one_job_does_not_make_everybody_claim(
    server: ServerThread, app: ServerApp, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[c.Claim] = []
    run = MemoryStore.arun

    async def counted(self: MemoryStore, command: Any) -> Any:
        if isinstance(command, c.Claim):
            claims.append(command)
        return await run(self, command)

    monkeypatch.setattr(MemoryStore, "arun", counted)
    connections = [asking(server, "/v1/claim", CLAIM) for _ in range(30)]
    until(lambda: app.polls.open == 30 and len({claim.request_id for claim in claims}) == 30)  # each has looked once
    claims.clear()
    store.enqueue([spec()])
    until(lambda: app.polls.open == 29)
    assert len(claims) < 25  # a look each second is among them
    for connection in connections:
        connection.close()
    until(lambda: app.polls.open == 0)


def test_a_caller_that_went_away_is_granted_nothing(server: ServerThread, app: ServerApp, store: MemoryStore) -> None:
    gone = asking(server, "/v1/claim", CLAIM)
    until(lambda: app.polls.open == 1)
    gone.close()
    until(lambda: app.polls.open == 0)
    store.enqueue([spec()])
    job = store.job("a")
    assert job is not None
    assert (job.state, job.attempt) == (JobState.READY, 0)


def test_what_was_granted_to_a_caller_that_went_meanwhile_is_given_back(
    server: ServerThread, app: ServerApp, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes while its claim is carried out."""
    caller = asking(server, "/v1/claim", CLAIM)
    until(lambda: app.polls.open == 1)
    run, left = MemoryStore.arun, threading.Event()

    async def slow(self: MemoryStore, command: Any) -> Any:
        leases = await run(self, command)
        if isinstance(command, c.Claim) and leases and not left.is_set():
            left.set()
            caller.close()
        return leases

    monkeypatch.setattr(MemoryStore, "arun", slow)
    store.enqueue([spec()])
    assert left.wait(LIMIT_S)

    def is_back() -> bool:
        job = store.job("a")
        return job is not None and job.state is JobState.READY and job.attempt == 1

    until(is_back)


def test_a_watch_is_answered_when_a_job_is_due(http: httpx.Client, app: ServerApp, store: MemoryStore) -> None:
    body = {"queues": ["mail"], "wait_s": 30}
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(http.post, "/v1/watch_queues", json=body)
        until(lambda: app.polls.open == 1)
        store.enqueue([spec()])
        assert waiting.result(LIMIT_S).json()["has_changed"] is True
    assert http.post("/v1/watch_queues", json=body).json()["has_changed"] is True


def test_an_end_is_told_to_who_waits_for_it(http: httpx.Client, app: ServerApp, store: MemoryStore) -> None:
    store.enqueue([spec()])
    (lease,) = store.claim("w", ["mail"], 1)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(http.post, "/v1/watch_end", json={"job_id": "a", "wait_s": 30})
        until(lambda: app.polls.open == 1)
        store.ack([c.AckReport("a", lease.token)])
        watched = waiting.result(LIMIT_S).json()
    assert watched["has_changed"] is True
    again = http.post("/v1/watch_end", json={"job_id": "a", "wait_s": 0.05, "seen": watched["seen"]})
    assert again.json() == {"has_changed": False, "seen": watched["seen"]}


def test_a_server_that_stops_answers_everybody_who_waits(server: ServerThread, app: ServerApp) -> None:
    bodies = {
        "/v1/claim": CLAIM,
        "/v1/watch_queues": {"queues": ["mail"], "wait_s": 30},
        "/v1/watch_end": {"job_id": "a", "wait_s": 30, "seen": "gone"},
    }
    connections = {path: asking(server, path, body) for path, body in bodies.items()}
    until(lambda: app.polls.open == len(connections))
    server.call(app.stop)
    answers = {path: msgspec.json.decode(answer(connection)) for path, connection in connections.items()}
    assert answers["/v1/claim"] == []
    assert answers["/v1/watch_queues"]["has_changed"] is answers["/v1/watch_end"]["has_changed"] is False
    assert httpx.get(f"{server.url}/readyz").json()["reason"] == "stopping"
    assert httpx.post(f"{server.url}/v1/claim", json=CLAIM).json() == []
    for connection in connections.values():
        connection.close()


def test_those_who_wait_share_one_watch_and_leave_nothing_behind(
    server: ServerThread, app: ServerApp, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches: list[Any] = []
    watch = MemoryStore.watch

    def counted(self: MemoryStore, queues: Any) -> Any:
        watches.append(queues)
        return watch(self, queues)

    monkeypatch.setattr(MemoryStore, "watch", counted)
    before = set(threading.enumerate())
    connections = [asking(server, "/v1/claim", CLAIM) for _ in range(50)]
    until(lambda: app.polls.open == 50 and len(watches) > 0)
    assert len(watches) == 1
    assert len(set(threading.enumerate()) - before) <= 1
    for connection in connections:
        connection.close()
    until(lambda: app.polls.open == 0)
    server.call(app.polls.close)
    until(lambda: _sets_of_queues(app.polls) == 0)


def _sets_of_queues(polls: Polls) -> int:
    return len(polls._queues)
