"""What is the client's own: tokens, repeats, errors, closing, forks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from leasemill.errors import Broken, Invalid, QueueRefused, Refused, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.factory import open_store
from leasemill.store.http.address import parse_address
from leasemill.store.http.connection import DirectCalls
from leasemill.store.http.store import HttpStore
from leasemill.store.memory import MemoryStore
from leasemill.store.url import hidden_password
from leasemill.testing.rules import rule
from tests.lab.forks import CHILD_S, forked
from tests.lab.http_server import ServerThread
from tests.lab.scripted import PROBLEM, Answer, Scripted, hangs_up, says


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture
def behind(server: ServerThread) -> Iterator[MemoryStore]:
    with MemoryStore() as store, server.serving(store):
        yield store


UNAUTHORISED = says(401, b'{"status":401,"title":"Unauthorized","reason":"unauthorised"}', PROBLEM)
TIME = says(200, b"7")


@pytest.mark.parametrize(
    ("url", "token"),
    [
        ("http://s3cret@host:1", "s3cret"),
        ("http://:s3cret@host:1", "s3cret"),
        ("http://key:s3cret@host:1", "s3cret"),
        ("https://s%2Bcret@host:1/prefix/", "s+cret"),
        ("http://host:1", None),
    ],
)
def test_the_token_of_a_url_is_in_no_name(url: str, token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEMILL_TOKEN", raising=False)
    address = parse_address(url)
    assert address.token == token
    assert "cret" not in address.base + hidden_password(url)
    assert address.base == ("https://host:1/prefix" if "prefix" in url else "http://host:1")


@pytest.mark.parametrize("url", ["http://", "http://host:port", "http://host?x=1", "http://a b@host"])
def test_a_url_that_names_no_server_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        open_store(url).close()
    assert "a b" not in str(refused.value)


def test_the_environment_has_the_token_or_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("LEASEMILL_TOKEN_FILE", str(file))
    assert parse_address("http://host").current_token() == "from-file"
    monkeypatch.setenv("LEASEMILL_TOKEN", "from-environment")
    assert parse_address("http://host").current_token() == "from-environment"
    assert parse_address("http://from-url@host").current_token() == "from-url"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEMILL_TOKEN_FILE", str(tmp_path / "missing"))
    with pytest.raises(Invalid, match="LEASEMILL_TOKEN_FILE"):
        open_store("http://127.0.0.1:9")


def test_a_new_token_in_the_file_is_used_when_the_old_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    monkeypatch.setenv("LEASEMILL_TOKEN_FILE", str(file))
    with Scripted(UNAUTHORISED, TIME) as scripted, HttpStore(scripted.url) as store:
        file.write_text("new")
        assert store.time() == 7
        sent = [headers["authorization"] for _, headers in scripted.asked]
    assert sent == ["Bearer old", "Bearer new"]


def test_a_token_that_is_refused_is_not_tried_again() -> None:
    with Scripted(UNAUTHORISED) as scripted, HttpStore(scripted.url.replace("//", "//s3cret@")) as store:
        with pytest.raises(Refused) as refused:
            store.time()
        assert "s3cret" not in str(refused.value) + store.name
        assert len(scripted.asked) == 1


def test_a_command_that_may_be_repeated_is_sent_again_when_no_answer_came() -> None:
    enqueued = says(200, b'[{"outcome":"enqueued","job_id":"a"}]')
    with Scripted(hangs_up, says(502, b"bad gateway", "text/html"), enqueued) as scripted:
        with HttpStore(scripted.url) as store:
            assert store.enqueue([JobSpec("a", "q", "k")]) == [c.Enqueued("a")]
        assert [path for path, _ in scripted.asked] == ["/v1/enqueue"] * 3


def test_a_command_that_may_not_be_repeated_is_sent_once() -> None:
    with Scripted(hangs_up) as scripted, HttpStore(scripted.url) as store:
        with pytest.raises(Unavailable, match="did not answer"):
            store.pause("q", by="ann", reason="test")
        assert len(scripted.asked) == 1


def test_too_many_requests_are_sent_again_whatever_they_are() -> None:
    busy = says(429, b'{"status":429,"title":"Too Many Requests","reason":"rate"}', PROBLEM)
    with Scripted(busy, says(200, b"null")) as scripted, HttpStore(scripted.url) as store:
        store.pause("q", by="ann", reason="test")
        assert len(scripted.asked) == 2


AWAY = b'{"status":503,"title":"Service Unavailable","reason":"unavailable","detail":"disk full"}'
BUSY = b'{"status":429,"title":"Too Many Requests","reason":"too_many"}'


@pytest.mark.parametrize(("status", "body"), [(429, BUSY), (503, AWAY)])
def test_a_server_that_asks_for_time_is_left_alone_for_so_long(status: int, body: bytes) -> None:
    with Scripted(says(status, body, PROBLEM, "1"), TIME) as scripted, HttpStore(scripted.url) as store:
        began = time.monotonic()
        assert store.time() == 7
        assert time.monotonic() - began >= 1
        assert len(scripted.asked) == 2


@pytest.mark.parametrize(("status", "body", "words"), [(429, BUSY, "request limit"), (503, AWAY, "disk full")])
def test_a_server_that_asks_for_more_time_than_a_call_has_is_unavailable_at_once(
    status: int, body: bytes, words: str
) -> None:
    with Scripted(says(status, body, PROBLEM, "3600")) as scripted, HttpStore(scripted.url) as store:
        with pytest.raises(Unavailable, match=words):
            store.time()
        assert len(scripted.asked) == 1


def test_what_may_not_be_repeated_is_not_sent_again_to_a_server_whose_store_is_away() -> None:
    with Scripted(says(503, AWAY, PROBLEM, "1")) as scripted, HttpStore(scripted.url) as store:
        with pytest.raises(Unavailable, match="disk full"):
            store.pause("q", by="ann", reason="test")
        assert len(scripted.asked) == 1


def test_a_broken_store_is_not_asked_again() -> None:
    broken = AWAY.replace(b'"unavailable"', b'"broken"')
    with Scripted(says(503, broken, PROBLEM)) as scripted, HttpStore(scripted.url) as store:
        with pytest.raises(Broken, match="disk full"):
            store.time()
        assert len(scripted.asked) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says(404, b"<html>", "text/html"), "check the URL"),
        (says(200, b'{"not": "a time"}'), "which this version cannot read"),
        (says(302, b"", "text/html"), "check the URL"),
    ],
)
def test_what_is_no_server_of_ours_is_refused(answer: Answer, words: str) -> None:
    with (
        Scripted(answer) as scripted,
        HttpStore(scripted.url) as store,
        pytest.raises(Refused, match=words),
    ):
        store.time()


def test_refusals_keep_their_class_and_words(server: ServerThread, behind: MemoryStore) -> None:
    behind.enqueue([JobSpec("a", "mail", "send")])
    with HttpStore(server.url) as store:
        with pytest.raises(QueueRefused, match="used with enqueue and claim"):
            store.acquire([c.AcquireRequest("mail", "A", 1, "w", "t")])
        with pytest.raises(Invalid, match="PostgreSQL"):
            store.using(object())
        assert store.own_url is None


def test_a_closed_store_ends_every_wait(server: ServerThread, behind: MemoryStore) -> None:
    store = HttpStore(server.url)
    behind.enqueue([JobSpec("a", "mail", "send")])
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(store.watch_end("a").wait(60)))
    waiter.start()
    store.close()
    waiter.join(30)
    assert not waiter.is_alive()
    with pytest.raises(Unavailable, match="closed"):
        store.time()


def is_closed(store: HttpStore) -> bool:
    store.close()
    return store._client._closed.is_set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(server: ServerThread, behind: MemoryStore) -> None:
    with HttpStore(server.url) as store:
        store.enqueue([JobSpec("parent", "mail", "send")])
        calls = store._client._calls
        assert forked(lambda: store._client._calls is not calls)  # before any of its threads asks
        assert forked(lambda: store.enqueue([JobSpec("child", "mail", "send")]) == [c.Enqueued("child")])
        assert {job.spec.id for job in store.jobs().jobs} == {"parent", "child"}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_over_connections_of_its_own(server: ServerThread, behind: MemoryStore) -> None:
    with HttpStore(server.url) as store:
        assert not store.watch(["mail"]).wait(0.01)
        before = store._client._waiting_calls
        assert before is not None
        assert forked(lambda: not store.watch(["mail"]).wait(0.01) and store._client._waiting_calls is not before)
        assert not store.watch(["mail"]).wait(0.01)


@rule("O10")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_notified_of_cancellations_although_its_parent_is_too(
    server: ServerThread, behind: MemoryStore
) -> None:
    with HttpStore(server.url) as store:

        def is_notified() -> bool:
            woken = threading.Event()
            store.watch_cancellations(woken.set)
            for number in range(100):  # the first may come before the server is asked
                store.enqueue([JobSpec(f"j{number}", "mail", "send")])
                store.claim("w", ["mail"], 1)
                store.cancel([f"j{number}"], by="ann", reason="test")
                if woken.wait(0.2):
                    return True
            return False

        store.watch_cancellations(lambda: None)
        assert forked(is_notified)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_that_closes_the_store_ends_no_call_of_its_parent() -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def answers_later(handler: BaseHTTPRequestHandler) -> None:
        asked.set()
        assert goes_on.wait(CHILD_S)
        TIME(handler)

    with Scripted(answers_later) as scripted, HttpStore(scripted.url) as store:
        times: list[int] = []
        waiting = threading.Thread(target=lambda: times.append(store.time()))
        waiting.start()
        assert asked.wait(CHILD_S)
        assert forked(partial(is_closed, store))
        goes_on.set()
        waiting.join()
        assert times == [7]
        assert len(scripted.asked) == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_closes_the_store_although_a_thread_of_its_parent_held_the_locks() -> None:
    store = HttpStore("http://127.0.0.1:1")
    calls = store._client._calls
    assert isinstance(calls, DirectCalls)
    with calls._lock, store._waits._lock:
        assert forked(partial(is_closed, store))
    store.close()
    assert forked(partial(is_closed, store))


def test_presence_is_the_servers(server: ServerThread, behind: MemoryStore) -> None:
    with HttpStore(server.url) as store:
        store.presence.publish("w", b'{"a":1}')
        assert [(one.worker_id, one.content) for one in behind.presence.records()] == [("w", b'{"a":1}')]
        assert [one.worker_id for one in store.presence.records()] == ["w"]
        assert not store.presence.remove("w", "other")
        assert store.presence.remove("w", "")
        store.presence.publish("w", b'{"instance":"own"}')
        assert store.presence.remove("w")
        assert not store.presence.remove("w")
        with pytest.raises(Invalid):
            store.presence.publish("w", b"not JSON")


def test_white_space_around_a_payload_is_not_content(server: ServerThread, behind: MemoryStore) -> None:
    with HttpStore(server.url) as store:
        store.enqueue([JobSpec("a", "mail", "send", b' {"b": [1, 2]}\n')])
    job = behind.job("a")
    assert job is not None
    assert (job.state, job.spec.payload) == (JobState.READY, b'{"b": [1, 2]}')


def test_polls_are_not_logged_and_requests_of_the_program_are(
    server: ServerThread, behind: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="httpx")
    with open_store(server.url) as store:
        assert store.watch(["mail"]).wait(0.01) is False
        httpx.get(f"{server.url}/healthz")
    (message,) = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert "/healthz" in message
