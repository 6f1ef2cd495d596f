"""An event loop keeps its connection from one message to the next, and from nobody who waits for it."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import selectors
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.driver.connections import ConnectionLost
from leasemill.store.postgres.driver.held_connection import KEPT_TURNS, Answer, FailedMessage
from leasemill.store.postgres.driver.loop import LoopDriver
from leasemill.store.postgres.statements import Execute, Statement
from leasemill.store.postgres.steps import BEGIN, Message
from leasemill.store.postgres.store import PostgresStore
from tests.lab.processes import wait_until

ONE = Execute(Statement(b"select 1::int8"), {})
FAILS = Execute(Statement(b"select 1 / 0"), {})
SLEEPS = Execute(Statement(b"select pg_sleep(60)"), {})
LONG_S = 30.0


@pytest.fixture
def size() -> int:
    """How many connections the store may have. One is open, and idle."""
    return 2


@pytest.fixture
def store(postgres_url: str, size: int) -> Iterator[PostgresStore]:
    with PostgresStore(f"{postgres_url}&pool_size={size}&pool_timeout_s={LONG_S:g}&listen=0") as store:
        yield store


@pytest.fixture
def driver(store: PostgresStore) -> LoopDriver:
    return store._loop_driver


async def answer_to(driver: LoopDriver, *message: Execute) -> Answer | None:
    """None: no connection is idle."""
    answered = send_if_idle(driver, message)
    return None if answered is None else await answered


def send(driver: LoopDriver, *message: Execute) -> asyncio.Future[Answer]:
    answered = send_if_idle(driver, message)
    assert answered is not None
    return answered


def send_if_idle(driver: LoopDriver, message: Message) -> asyncio.Future[Answer] | None:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def answer(given: Answer) -> None:
        if not answered.cancelled():
            answered.set_result(given)

    return answered if driver.send(message, answer) else None


@pytest.fixture
def taken(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each connection that is taken from the pool."""
    found: list[object] = []
    take = store._connections.take_idle

    def take_idle() -> object:
        found.append(take())
        return found[-1]

    monkeypatch.setattr(store._connections, "take_idle", take_idle)
    return found


def in_use(store: PostgresStore) -> int:
    return store._connections._pool._in_use


async def turns(count: int = KEPT_TURNS + 2) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_caller_that_sends_again_at_once_has_the_same_connection(
    driver: LoopDriver, taken: list[object]
) -> None:
    for _ in range(5):
        assert await answer_to(driver, ONE) == [[(1,)]]
    assert len(taken) == 1


async def test_a_connection_that_nobody_uses_again_is_given_back(store: PostgresStore, driver: LoopDriver) -> None:
    assert await answer_to(driver, ONE) == [[(1,)]]
    await turns()
    assert in_use(store) == 0
    assert driver._held == set()


async def test_two_messages_at_the_same_time_do_not_share_a_connection(store: PostgresStore) -> None:
    driver = store._loop_driver
    first = send(driver, ONE)
    assert await answer_to(driver, ONE) is None
    assert await first == [[(1,)]]


@pytest.mark.parametrize("size", [1])
async def test_a_thread_that_waits_is_next_although_the_loop_sends_without_a_pause(
    store: PostgresStore, driver: LoopDriver
) -> None:
    has_run = threading.Event()

    def run() -> None:
        store.totals()
        has_run.set()

    thread = threading.Thread(target=run)

    async def send_without_a_pause() -> None:
        sent = 0
        while not has_run.is_set():
            answer = await answer_to(driver, ONE)
            assert not isinstance(answer, FailedMessage)
            sent += 1
            if sent == 5:
                thread.start()
            if answer is None:
                await asyncio.sleep(0.001)

    await asyncio.wait_for(send_without_a_pause(), LONG_S)
    thread.join()


@pytest.mark.parametrize("size", [1])
async def test_a_thread_has_the_last_connection_although_who_got_the_answer_blocks_the_loop(
    store: PostgresStore, driver: LoopDriver
) -> None:
    """As a handler does while the worker's heartbeat extends its lease."""
    thread = threading.Thread(target=store.totals, daemon=True)
    assert await answer_to(driver, ONE) == [[(1,)]]
    thread.start()
    thread.join(LONG_S / 3)
    assert not thread.is_alive()


async def test_a_transaction_that_failed_does_not_reach_the_next_message(driver: LoopDriver) -> None:
    failed = await answer_to(driver, BEGIN, FAILS)
    assert isinstance(failed, FailedMessage)
    assert not isinstance(failed.meaning, ConnectionLost)
    assert await answer_to(driver, ONE) in (None, [[(1,)]])  # None: the pool has closed it, a thread opens another


@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_that_was_closed_at_once_keeps_no_connection(store: PostgresStore, driver: LoopDriver) -> None:
    loop = asyncio.new_event_loop()

    def begin() -> None:
        send(driver, ONE).add_done_callback(lambda _: loop.stop())

    loop.call_soon(begin)
    loop.run_forever()
    loop.close()
    assert asyncio.run(answer_to(driver, ONE)) == [[(1,)]]
    assert in_use(store) == 0
    assert store.run(c.Enqueue([JobSpec("a", "q", "k")])) == [c.Enqueued("a")]


async def test_a_connection_that_the_server_ends_between_two_messages_is_let_go(
    store: PostgresStore, driver: LoopDriver, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    assert await answer_to(driver, ONE) == [[(1,)]]
    (held,) = driver._held
    admin.execute("select pg_terminate_backend(%s, 10000)", [held.connection.info.backend_pid])
    assert await store.arun(c.Enqueue([JobSpec("a", "q", "k")], are_new=True)) == [c.Enqueued("a")]


async def test_a_caller_that_was_cancelled_keeps_no_connection(store: PostgresStore, driver: LoopDriver) -> None:
    send(driver, ONE).cancel()
    async with asyncio.timeout(LONG_S):
        while in_use(store):
            await turns(1)
    assert driver._held == set()


@pytest.mark.parametrize("size", [1])
def test_a_thread_gets_the_place_of_a_loop_that_was_stopped_before_its_answer(
    store: PostgresStore, driver: LoopDriver
) -> None:
    loop = asyncio.new_event_loop()

    async def leave() -> asyncio.Future[Answer]:
        return send(driver, SLEEPS)

    failed = loop.run_until_complete(leave())
    (held,) = driver._held
    held._answer_due_s = 0.0
    assert store.run(c.Enqueue([JobSpec("a", "q", "k")])) == [c.Enqueued("a")]
    assert in_use(store) == 0

    answer = loop.run_until_complete(asyncio.wait_for(failed, LONG_S))
    assert isinstance(answer, FailedMessage)
    assert isinstance(answer.meaning, ConnectionLost)
    assert loop.run_until_complete(answer_to(driver, ONE)) == [[(1,)]]
    assert in_use(store) == 0
    assert not driver._held
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held._descriptor)
    loop.close()


def test_event_loops_one_after_the_other_use_the_same_few_connections(
    postgres_url: str, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    """A web server that makes a loop for each request, tests with a loop each."""

    async def enqueue(store: PostgresStore, number: int) -> None:
        calls = [store.arun(c.Enqueue([JobSpec(f"{number}-{k}", "q", "k")], are_new=True)) for k in range(3)]
        if number % 2:
            await asyncio.gather(*calls)
        else:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*calls), 0.0005)

    with PostgresStore(f"{postgres_url}&pool_size=2&listen=0&application_name=loops") as store:
        for number in range(200):
            asyncio.run(enqueue(store, number))
        store.totals()
        assert not store._loop_driver._held
        sessions = "select count(*) from pg_stat_activity where application_name = 'loops'"
        wait_until(lambda: admin.execute(sessions).fetchone() in [(1,), (2,)], "sessions that were given up to end")


@pytest.mark.parametrize("size", [1])
def test_a_thread_gets_the_connection_of_a_loop_that_was_closed_before_its_answer(
    store: PostgresStore, driver: LoopDriver
) -> None:
    async def leave() -> None:
        send(driver, SLEEPS)

    asyncio.run(leave())
    assert store.run(c.Enqueue([JobSpec("a", "q", "k")])) == [c.Enqueued("a")]


async def test_where_no_file_can_be_opened_the_connection_is_left_to_a_thread(
    store: PostgresStore, driver: LoopDriver
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        answer = await answer_to(driver, ONE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert answer is None
    assert in_use(store) == 0


@contextmanager
def idle_child() -> Iterator[None]:
    """A forked process, which has every descriptor of its parent."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)  # until its parent closes it
        os._exit(0)
    try:
        yield
    finally:
        os.close(writes)
        os.waitpid(child, 0)
        os.close(reads)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("is_given_up", [True, False])
def test_a_connection_that_a_forked_child_has_too_does_not_wake_the_loop_when_it_is_over(
    driver: LoopDriver, admin: psycopg.Connection[Any], is_given_up: bool
) -> None:
    selector = selectors.EpollSelector()

    async def lose_connection() -> list[tuple[int, int]]:
        answered = send(driver, SLEEPS)
        (held,) = driver._held
        process = held.connection.info.backend_pid
        if is_given_up:
            held.give_up()
        admin.execute("select pg_terminate_backend(%s, 10000)", [process])
        assert isinstance(await answered, FailedMessage)
        with select.epoll.fromfd(os.dup(selector.fileno())) as all_watched:
            return all_watched.poll(0)

    with idle_child(), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert runner.run(lose_connection()) == []
