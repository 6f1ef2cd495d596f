"""Callers of one process share requests: each has the answer it would have had alone, and nobody another's error."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from leasemill.errors import Broken, Invalid, QueueRefused, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, LimitUse, Rules, UniqueKey
from leasemill.server.authorizer import Authorizer
from leasemill.server.limits import Meter, ServerLimits
from leasemill.server.security import secured
from leasemill.store.access_keys import new_key
from leasemill.store.base import Store
from leasemill.store.http import retry_policy, shared_enqueues
from leasemill.store.http.store import HttpStore
from leasemill.store.memory import MemoryStore
from leasemill.testing.rules import rule
from leasemill.wire.codec import encode_request, merged_enqueues
from leasemill.wire.routes import Role
from tests.lab.forks import forked
from tests.lab.http_server import ServerThread
from tests.lab.scripted import PROBLEM, Scripted, hangs_up, says

LONG_S = 30.0


def job(job_id: str, queue: str = "mail", payload: bytes = b"1") -> JobSpec:
    return JobSpec(job_id, queue, "send", payload)


class Behind(MemoryStore):
    """What the server serves. Its first enqueue waits; `requests` has the ids of every one. `on_request` may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[str]] = []
        self.reached, self.go = threading.Event(), threading.Event()
        self.on_request: Callable[[c.Enqueue], None] = lambda _: None

    async def arun(self, command: c.Command[Any]) -> Any:
        if isinstance(command, c.Enqueue):
            self.requests.append([one.id for one in command.jobs])
            if len(self.requests) == 1:
                self.reached.set()
                while not self.go.is_set():  # noqa: ASYNC110  (it is set by another thread)
                    await asyncio.sleep(0.001)
            self.on_request(command)
        return await super().arun(command)


class Callers:
    """Of one store, each in a thread of its own, and what became of them."""

    def __init__(self, store: HttpStore) -> None:
        self.store = store
        self.outcomes: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def call(self, name: str, *jobs: JobSpec) -> None:
        self.run(name, lambda: self.store.enqueue(jobs or [job(name)]))

    def run(self, name: str, call: Callable[[], object]) -> None:
        def run() -> None:
            try:
                self.outcomes[name] = call()
            except BaseException as error:  # noqa: BLE001  (whatever the caller would see)
                self.outcomes[name] = error

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_for_waiting(self, count: int, *, are_new: bool = False) -> None:
        line = self.store._enqueues._pipelines[are_new]
        wait_until(lambda: len(line._waiting) >= count)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(LONG_S)
            assert not thread.is_alive(), "a caller is stranded"


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, too, nobody leaves before the others have come."""
    monkeypatch.setattr(shared_enqueues, "WAIT_S", LONG_S)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


class Held:
    """A server whose first enqueue waits, with a caller in it; others come behind it."""

    def __init__(self, server: ServerThread, behind: Behind, url: str, gate: Authorizer | None = None) -> None:
        self.behind = behind
        self.store = HttpStore(url)
        self._serving = server.serving(behind, gate)
        self._serving.__enter__()
        self.callers = Callers(self.store)
        self.callers.call("first")
        assert behind.reached.wait(LONG_S)

    def share(self, **calls: list[JobSpec]) -> dict[str, Any]:
        """What became of these, which were in one request."""
        for number, (name, jobs) in enumerate(calls.items(), 1):
            self.callers.call(name, *jobs)
            self.callers.wait_for_waiting(number)
        self.release()
        assert self.callers.outcomes.pop("first") == [c.Enqueued("first")]
        return self.callers.outcomes

    def release(self) -> None:
        self.behind.go.set()
        self.callers.finish()

    def close(self) -> None:
        self.behind.go.set()
        self.store.close()
        self._serving.__exit__(None, None, None)
        self.behind.close()


@pytest.fixture
def held(server: ServerThread) -> Iterator[Held]:
    held = Held(server, Behind(), server.url)
    yield held
    held.close()


def keyed(server: ServerThread, limits: ServerLimits | None = None) -> Held:
    """Behind a key for the queue mail."""
    behind = Behind()
    key, text = new_key(name="web", roles=[Role.PRODUCER], now=1, by="ada", queues=["mail"])
    behind.keys.add(key)
    gate = secured(behind, "127.0.0.1", requires_keys=True, limits=limits).authorizer
    return Held(server, behind, server.url.replace("//", f"//{text}@"), gate)


def known(store: Store) -> set[str]:
    return {one.spec.id for one in store.jobs(limit=1_000).jobs}


# One request ---------------------------------------------------------------------------------------------------------


@rule("E1", "E2", "E4", "E6")
def test_those_that_come_meanwhile_share_a_request_and_each_has_its_own_outcomes(held: Held) -> None:
    outcomes = held.share(
        one=[job("one")],
        two=[job("two-a"), job("two-b")],
        again=[job("one")],
        other=[job("one", payload=b"2"), job("three")],
    )
    assert outcomes == {
        "one": [c.Enqueued("one")],
        "two": [c.Enqueued("two-a"), c.Enqueued("two-b")],
        "again": [c.Duplicate("one")],
        "other": [c.Conflict("one"), c.Enqueued("three")],
    }
    assert held.behind.requests == [["first"], ["one", "two-a", "two-b", "one", "one", "three"]]


@rule("N1")
def test_jobs_in_lanes_and_under_limits_are_shared(held: Held) -> None:
    laned = [JobSpec(f"l-{number}", "mail", "send", lane="ann") for number in range(2)]
    limited = JobSpec("limited", "mail", "send", rules=Rules(limits=(LimitUse("smtp"),)))
    outcomes = held.share(one=[laned[0]], two=[laned[1]], three=[limited])
    assert outcomes == {"one": [c.Enqueued("l-0")], "two": [c.Enqueued("l-1")], "three": [c.Enqueued("limited")]}
    assert held.behind.requests == [["first"], ["l-0", "l-1", "limited"]]


def test_threads_and_coroutines_share_a_request(held: Held) -> None:
    async def many() -> list[object]:
        calls = [held.store.arun(c.Enqueue([job(f"async-{number}")])) for number in range(5)]
        return list(await asyncio.gather(*calls))

    held.callers.run("loop", lambda: asyncio.run(many()))
    held.callers.call("thread")
    held.callers.wait_for_waiting(6)
    held.release()
    assert held.callers.outcomes["loop"] == [[c.Enqueued(f"async-{number}")] for number in range(5)]
    assert held.callers.outcomes["thread"] == [c.Enqueued("thread")]
    assert len(held.behind.requests) == 2


def test_drawn_ids_do_not_wait_for_ids_of_a_callers_own(held: Held) -> None:
    assert held.store.run(c.Enqueue([job("drawn")], are_new=True)) == [c.Enqueued("drawn")]
    assert "first" not in held.callers.outcomes


def test_a_caller_alone_sends_what_it_would_have_sent() -> None:
    with Scripted(says(200, b'[{"outcome":"enqueued","job_id":"a"}]')) as scripted, HttpStore(scripted.url) as store:
        assert store.enqueue([job("a")]) == [c.Enqueued("a")]
        assert len(scripted.asked) == 1


def test_a_caller_alone_that_is_refused_is_not_sent_again() -> None:
    refused = says(403, b'{"status":403,"title":"Forbidden","reason":"forbidden","detail":"outside"}', PROBLEM)
    with Scripted(refused) as scripted, HttpStore(scripted.url) as store:
        with pytest.raises(Refused, match="outside"):
            store.enqueue([job("a")])
        assert len(scripted.asked) == 1


def test_one_body_for_all_is_the_body_of_one_call_with_all_jobs() -> None:
    calls = [[job("a")], [job("b", payload=b'{"x": [1, "]}"]}'), job("c", "other")], [JobSpec("d", "q", "k", lane="é")]]
    bodies = [encode_request(shared_enqueues.ROUTE, c.Enqueue(jobs)) for jobs in calls]
    whole = encode_request(shared_enqueues.ROUTE, c.Enqueue([one for jobs in calls for one in jobs]))
    assert merged_enqueues(bodies) == whole
    assert merged_enqueues(bodies[:1]) == bodies[0]


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        [JobSpec("a", "q", "k", rules=Rules(unique=UniqueKey("u")))],
        [JobSpec("a", "q", "k", rules=Rules(group="g"))],
        [job("a"), JobSpec("b", "q", "k", rules=Rules(chain=(ChainedJob("q", "k"),)))],
        [job(f"{number}") for number in range(shared_enqueues.SHARED_JOBS + 1)],
        [job("a", payload=b'"%s"' % (b"x" * shared_enqueues.SHARED_BYTES))],
    ],
)
def test_what_is_decided_by_other_jobs_and_what_is_large_goes_alone(jobs: list[JobSpec]) -> None:
    assert shared_enqueues.shared_weight(jobs, len(encode_request(shared_enqueues.ROUTE, c.Enqueue(jobs)))) == 0


def test_unique_keys_are_not_kept_waiting(held: Held) -> None:
    unique = [JobSpec(name, "mail", "send", rules=Rules(unique=UniqueKey("u"))) for name in ("a", "b")]
    assert held.store.enqueue(unique[:1]) == [c.Enqueued("a")]
    assert held.store.enqueue(unique[1:]) == [c.Merged("a")]
    assert held.behind.requests[1:] == [["a"], ["b"]]


def test_no_shared_request_is_larger_than_it_may_be(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shared_enqueues.SharedEnqueues, "_send", recorded := Recorded(shared_enqueues.SharedEnqueues._send)
    )
    large, many = b'"%s"' % (b"x" * 60_000), [b"1"] * 90
    with HttpStore(held.store.name) as store:
        callers = Callers(store)
        recorded.is_held = True
        callers.call("leads")
        assert recorded.reached.wait(LONG_S)
        for number in range(9):
            callers.call(f"large-{number}", job(f"large-{number}", payload=large))
            callers.call(f"many-{number}", *[job(f"{number}-{n}", payload=one) for n, one in enumerate(many)])
        callers.wait_for_waiting(18)
        recorded.go.set()
        callers.finish()
        assert all(isinstance(outcome, list) for outcome in callers.outcomes.values())
    assert 3 <= len(recorded.sent) < 19
    for batch in recorded.sent:
        assert sum(len(ticket.command.body) for ticket in batch) <= shared_enqueues.REQUEST_BYTES
        assert sum(ticket.jobs for ticket in batch) <= shared_enqueues.REQUEST_BYTES / shared_enqueues.JOB_BYTES


class Recorded:
    """Every batch that was sent; the first may be held."""

    def __init__(self, send: Callable[[Any, Any], None]) -> None:
        self._send = send
        self.sent: list[list[shared_enqueues.RequestTicket]] = []
        self.is_held = False
        self.reached, self.go = threading.Event(), threading.Event()

    def __get__(
        self, owner: shared_enqueues.SharedEnqueues, _: object
    ) -> Callable[[list[shared_enqueues.RequestTicket]], None]:
        def send(batch: list[shared_enqueues.RequestTicket]) -> None:
            self.sent.append(batch)
            if self.is_held and not self.reached.is_set():
                self.reached.set()
                assert self.go.wait(LONG_S)
            self._send(owner, batch)

        return send


# Errors reach the caller they belong to ------------------------------------------------------------------------------


def test_a_job_outside_of_the_key_is_refused_to_its_caller_alone(server: ServerThread) -> None:
    held = keyed(server)
    try:
        outcomes = held.share(one=[job("one")], two=[job("other", "secret"), job("with-it")], three=[job("three")])
        refused = outcomes.pop("two")
        assert isinstance(refused, Refused)
        assert "outside of key" in str(refused)
        assert outcomes == {"one": [c.Enqueued("one")], "three": [c.Enqueued("three")]}
        assert known(held.behind) == {"first", "one", "three"}
    finally:
        held.close()


def test_calls_that_are_too_large_together_are_sent_one_by_one(server: ServerThread) -> None:
    held = keyed(server, ServerLimits(body_bytes=3_000))
    try:
        payload = b'"%s"' % (b"x" * 2_000)
        outcomes = held.share(
            one=[job("one", payload=payload)],
            two=[job("two", payload=payload)],
            large=[job("large", payload=b"7" * 4_000)],
        )
        refused = outcomes.pop("large")
        assert isinstance(refused, Refused)
        assert "3,000 bytes" in str(refused)
        assert outcomes == {"one": [c.Enqueued("one")], "two": [c.Enqueued("two")]}
        assert known(held.behind) == {"first", "one", "two"}
    finally:
        held.close()


def test_a_job_that_the_server_finds_invalid_is_refused_to_its_caller_alone(held: Held) -> None:
    held.callers.call("one")
    held.callers.wait_for_waiting(1)
    held.callers.run("bad", lambda: held.store._enqueues.run(c.Enqueue([job("bad", "no name!"), job("with-it")])))
    held.callers.wait_for_waiting(2)
    held.release()
    assert held.callers.outcomes["one"] == [c.Enqueued("one")]
    assert isinstance(held.callers.outcomes["bad"], Invalid)
    assert known(held.behind) == {"first", "one"}


@rule("I7")
def test_a_queue_that_takes_no_jobs_is_refused_to_its_caller_alone(held: Held) -> None:
    held.behind.acquire([c.AcquireRequest("offsets", "lane", 1, "worker", "token")])
    outcomes = held.share(one=[job("one")], two=[job("two", "offsets")], three=[job("three")])
    assert isinstance(outcomes.pop("two"), QueueRefused)
    assert outcomes == {"one": [c.Enqueued("one")], "three": [c.Enqueued("three")]}


@rule("E4")
def test_where_all_are_refused_each_has_its_own_refusal(held: Held) -> None:
    held.behind.run(c.Enqueue([job("a"), job("b")]))
    outcomes = held.share(one=[job("a", payload=b"2")], two=[job("b", payload=b"2")])
    assert outcomes == {"one": [c.Conflict("a")], "two": [c.Conflict("b")]}
    assert held.behind.requests == [["first"], ["a", "b"]]


def test_who_sends_too_much_waits_as_it_would_have_alone(server: ServerThread) -> None:
    limits = ServerLimits(requests_per_s=1, burst=1)
    held = keyed(server, limits)
    try:
        now, refused = 0.0, threading.Event()

        class Counting(Meter):
            def enter(self, who: str | None, **given: Any) -> None:
                nonlocal now
                try:
                    super().enter(who, **given)
                except Exception:
                    refused.set()
                    now += 100  # so that one may pass
                    raise
                now += 100 * refused.is_set()

        meter = Counting(limits, lambda: now)
        app = server._stage.app
        meter.enter(f"key web ({held.behind.keys.all()[0].id})", is_poll=False, body_bytes=0)
        app._authorizer._meter = meter
        outcomes = held.share(one=[job("one")], two=[job("two")])
        assert refused.is_set()
        assert outcomes == {"one": [c.Enqueued("one")], "two": [c.Enqueued("two")]}
        assert sorted(held.behind.requests) == [["first"], ["one"], ["two"]]
    finally:
        held.close()


def fails_for_many(error: Exception) -> Callable[[c.Enqueue], None]:
    def on_request(command: c.Enqueue) -> None:
        if len(command.jobs) > 1:
            raise error

    return on_request


@pytest.mark.parametrize("error", [RuntimeError("a fault of the server"), Unavailable("disk full"), Refused("no")])
def test_what_fails_as_a_whole_is_left_to_its_callers(held: Held, error: Exception) -> None:
    held.behind.on_request = fails_for_many(error)
    outcomes = held.share(one=[job("one")], two=[job("two")])
    assert outcomes == {"one": [c.Enqueued("one")], "two": [c.Enqueued("two")]}
    assert held.behind.requests[1] == ["one", "two"]
    assert sorted(held.behind.requests[2:]) == [["one"], ["two"]]


def test_a_broken_store_is_broken_for_each_of_them(held: Held) -> None:
    held.behind.on_request = fails_for_many(Broken("the log is damaged"))
    outcomes = held.share(one=[job("one")], two=[job("two")])
    assert [str(error) for error in outcomes.values()] == ["the log is damaged"] * 2
    assert all(isinstance(error, Broken) for error in outcomes.values())
    assert outcomes["one"] is not outcomes["two"]


def waits_for(go: threading.Event, asked: threading.Event) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        assert go.wait(LONG_S)
        says(200, b'[{"outcome":"enqueued","job_id":"first"}]')(handler)

    return answer


class TestScripted:
    """What came after the first answer is written down."""

    def shared(self, *answers: Callable[[BaseHTTPRequestHandler], None], while_held: Callable[[], object]) -> Any:
        go, asked = threading.Event(), threading.Event()
        with Scripted(waits_for(go, asked), *answers) as scripted, HttpStore(scripted.url) as store:
            callers = Callers(store)
            callers.call("first")
            assert asked.wait(LONG_S)
            for number in range(3):
                callers.call(f"c-{number}")
            callers.wait_for_waiting(3)
            while_held()
            go.set()
            callers.finish()
            del callers.outcomes["first"]
            return callers.outcomes, scripted.asked

    def test_if_the_server_goes_away_each_has_an_error_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retry_policy, "PATIENCE_S", 0.0)
        outcomes, asked = self.shared(hangs_up, while_held=lambda: None)
        assert len(asked) == 2
        assert len({id(error) for error in outcomes.values()}) == 3
        for error in outcomes.values():
            assert isinstance(error, Unavailable)
            assert "did not answer" in str(error)

    def test_if_it_comes_back_each_is_sent_again(self) -> None:
        enqueued = says(200, b'[{"outcome":"enqueued","job_id":"x"}]')
        outcomes, asked = self.shared(hangs_up, enqueued, enqueued, enqueued, while_held=lambda: None)
        assert len(asked) == 5
        assert list(outcomes.values()) == [[c.Enqueued("x")]] * 3

    def test_a_new_token_is_used_by_each_when_the_old_one_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "token"
        file.write_text("old")
        monkeypatch.setenv("LEASEMILL_TOKEN_FILE", str(file))
        enqueued = says(200, b'[{"outcome":"enqueued","job_id":"x"}]')
        unauthorised = says(401, b'{"status":401,"title":"Unauthorized","reason":"unauthorised"}', PROBLEM)
        outcomes, asked = self.shared(
            unauthorised, enqueued, enqueued, enqueued, while_held=lambda: file.write_text("new")
        )
        assert [headers["authorization"] for _, headers in asked] == ["Bearer old"] * 2 + ["Bearer new"] * 3
        assert list(outcomes.values()) == [[c.Enqueued("x")]] * 3

    @pytest.mark.parametrize("answer", [b'[{"outcome":"enqueued","job_id":"x"}]', b"[7]", b"no JSON"])
    def test_an_answer_that_does_not_fit_is_nobodys(self, answer: bytes) -> None:
        enqueued = says(200, b'[{"outcome":"enqueued","job_id":"x"}]')
        outcomes, asked = self.shared(says(200, answer), enqueued, enqueued, enqueued, while_held=lambda: None)
        assert len(asked) == 5
        assert list(outcomes.values()) == [[c.Enqueued("x")]] * 3


# Callers that end ----------------------------------------------------------------------------------------------------


def test_nobody_waits_long_for_a_request_that_hangs(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_enqueues, "WAIT_S", 0.01)
    assert held.store.enqueue([job("thread")]) == [c.Enqueued("thread")]
    assert asyncio.run(held.store.arun(c.Enqueue([job("async")]))) == [c.Enqueued("async")]
    assert "first" not in held.callers.outcomes
    assert held.behind.requests == [["first"], ["thread"], ["async"]]


def test_a_cancelled_caller_cancels_nothing_of_the_others(held: Held) -> None:
    release, reached = threading.Event(), threading.Event()

    def second(command: c.Enqueue) -> None:
        if len(command.jobs) > 1:
            reached.set()
            assert release.wait(LONG_S)

    held.behind.on_request = second

    async def calls() -> list[object]:
        tasks = [asyncio.ensure_future(held.store.arun(c.Enqueue([job(f"a-{number}")]))) for number in range(4)]
        await asyncio.to_thread(held.callers.wait_for_waiting, 4)
        tasks[0].cancel()  # it was not sent
        await asyncio.sleep(0)
        held.behind.go.set()
        assert await asyncio.to_thread(reached.wait, LONG_S)
        tasks[1].cancel()  # it was
        await asyncio.sleep(0)
        release.set()
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    gone, sent, *others = asyncio.run(calls())
    assert isinstance(gone, asyncio.CancelledError)
    assert isinstance(sent, asyncio.CancelledError)
    assert others == [[c.Enqueued("a-2")], [c.Enqueued("a-3")]]
    assert held.behind.requests[1:] == [["a-1", "a-2", "a-3"]]


def test_a_loop_that_ends_leaves_the_others_alone(held: Held) -> None:
    async def gives_up() -> None:
        calls = [held.store.arun(c.Enqueue([job(f"a-{number}")])) for number in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*calls), 0.01)

    asyncio.run(gives_up())
    assert held.share(one=[job("one")]) == {"one": [c.Enqueued("one")]}


def test_closing_the_store_ends_every_call(held: Held) -> None:
    async def many() -> list[object]:
        calls = [held.store.arun(c.Enqueue([job(f"async-{number}")])) for number in range(3)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    for number in range(3):
        held.callers.call(f"c-{number}")
    held.callers.run("loop", lambda: asyncio.run(many()))
    held.callers.wait_for_waiting(6)
    held.store.close()
    held.callers.finish()
    outcomes = held.callers.outcomes
    errors = [*outcomes.pop("loop"), *outcomes.values()]
    assert len({id(error) for error in errors}) == 7
    for error in errors:
        assert isinstance(error, Unavailable)
        assert "is closed" in str(error)
    assert held.behind.requests == [["first"]]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_closing_the_store_ends_calls_of_coroutines_alone(server: ServerThread) -> None:
    behind = Behind()

    async def many() -> list[object]:
        calls = [store.arun(c.Enqueue([job(f"async-{number}")])) for number in range(3)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    with server.serving(behind), HttpStore(server.url) as store:
        callers = Callers(store)
        callers.run("first", lambda: asyncio.run(many()))
        assert behind.reached.wait(LONG_S)
        callers.run("loop", lambda: asyncio.run(many()))
        callers.wait_for_waiting(3)
        store.close()
        callers.finish()
        behind.go.set()
        errors = [*callers.outcomes["first"], *callers.outcomes["loop"]]
        assert [str(error).partition(", ")[0] for error in errors] == ["this store"] * 6
    wait_until(lambda: not any(thread.name == "leasemill enqueue" for thread in threading.enumerate()))


class Stopped(BaseException):
    """What a signal's handler raises."""


def test_an_interrupted_leader_strands_nobody(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    client = held.store._client
    post = client.post

    def interrupted(route: Any, body: bytes) -> Any:
        posted = post(route, body)
        if body.count(b'"id"') > 1:
            raise Stopped
        return posted

    monkeypatch.setattr(client, "post", interrupted)
    outcomes = held.share(one=[job("one")], two=[job("two")], three=[job("three")])
    assert sum(isinstance(outcome, Stopped) for outcome in outcomes.values()) == 1
    for name, outcome in outcomes.items():
        assert isinstance(outcome, Stopped) or outcome == [c.Duplicate(name)]  # it was enqueued, and is sent again
    assert held.store.enqueue([job("later")]) == [c.Enqueued("later")]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_none_of_its_parents_callers(held: Held) -> None:
    held.callers.call("behind")
    held.callers.wait_for_waiting(1)
    assert forked(lambda: held.store.enqueue([job("child")]) == [c.Enqueued("child")])
    assert forked(lambda: asyncio.run(held.store.arun(c.Enqueue([job("async")]))) == [c.Enqueued("async")])
    held.release()
    assert held.callers.outcomes == {"first": [c.Enqueued("first")], "behind": [c.Enqueued("behind")]}
    assert known(held.behind) == {"first", "behind", "child", "async"}
