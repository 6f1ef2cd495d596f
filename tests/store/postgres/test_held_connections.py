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
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.wire.batch import BEGIN, Sent
from leasemill.store.postgres.wire.looped import KEPT_TURNS, Answer, LoopMessages, MessageFailed
from tests.lab.processes import wait_until

ONE: Sent = (b"select 1::int8", ())
FAILS: Sent = (b"select 1 / 0", ())
SLEEPS: Sent = (b"select pg_sleep(60)", ())
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
def messages(store: PostgresStore) -> LoopMessages:
    return store._loop_messages


@pytest.fixture
def taken(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each connection that is taken from the pool."""
    found: list[object] = []
    take = store._pool.take_idle

    def take_idle() -> object:
        found.append(take())
        return found[-1]

    monkeypatch.setattr(store._pool, "take_idle", take_idle)
    return found


def in_use(store: PostgresStore) -> int:
    return store._pool._pool._in_use


async def turns(count: int = KEPT_TURNS + 2) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_caller_that_sends_again_at_once_has_the_same_connection(
    messages: LoopMessages, taken: list[object]
) -> None:
    for _ in range(5):
        assert await messages.ask([ONE]) == [[(1,)]]
    assert len(taken) == 1


async def test_a_connection_that_nobody_uses_again_is_given_back(store: PostgresStore, messages: LoopMessages) -> None:
    assert await messages.ask([ONE]) == [[(1,)]]
    await turns()
    assert in_use(store) == 0
    assert messages._held == set()


async def test_two_messages_at_the_same_time_do_not_share_a_connection(store: PostgresStore) -> None:
    messages, first = store._loop_messages, asyncio.get_running_loop().create_future()
    assert messages.send([ONE], first.set_result)
    assert await messages.ask([ONE]) is None
    assert await first == [[(1,)]]


@pytest.mark.parametrize("size", [1])
async def test_a_thread_that_waits_is_next_although_the_loop_sends_without_a_pause(
    store: PostgresStore, messages: LoopMessages
) -> None:
    has_run = threading.Event()

    def run() -> None:
        store.totals()
        has_run.set()

    thread = threading.Thread(target=run)
    sent = 0

    def again(answer: Answer) -> None:
        nonlocal sent
        assert not isinstance(answer, MessageFailed)
        sent += 1
        if sent == 5:
            thread.start()
        if not has_run.is_set() and not messages.send([ONE], again):
            asyncio.get_running_loop().call_later(0.001, again, answer)

    assert messages.send([ONE], again)
    async with asyncio.timeout(LONG_S):
        await asyncio.to_thread(has_run.wait)
    thread.join()


@pytest.mark.parametrize("size", [1])
async def test_a_thread_has_the_last_connection_although_who_got_the_answer_blocks_the_loop(
    store: PostgresStore, messages: LoopMessages
) -> None:
    """As a handler does while the worker's heartbeat extends its lease."""
    thread = threading.Thread(target=store.totals, daemon=True)
    assert await messages.ask([ONE]) == [[(1,)]]
    thread.start()
    thread.join(LONG_S / 3)
    assert not thread.is_alive()


async def test_a_transaction_that_failed_does_not_reach_the_next_message(messages: LoopMessages) -> None:
    failed = await messages.ask([BEGIN, FAILS])
    assert isinstance(failed, MessageFailed)
    assert not failed.is_lost
    assert await messages.ask([ONE]) in (None, [[(1,)]])  # None: the pool has closed it, a thread opens another


@pytest.mark.parametrize("size", [1, 2])
def test_a_loop_that_was_closed_at_once_keeps_no_connection(store: PostgresStore, messages: LoopMessages) -> None:
    loop = asyncio.new_event_loop()

    def send() -> None:
        assert messages.send([ONE], lambda _: loop.stop())

    loop.call_soon(send)
    loop.run_forever()
    loop.close()
    assert asyncio.run(messages.ask([ONE])) == [[(1,)]]
    assert in_use(store) == 0
    assert store.run(c.Enqueue([JobSpec("a", "q", "k")])) == [c.Enqueued("a")]


async def test_a_connection_that_the_server_ends_between_two_messages_is_let_go(
    store: PostgresStore, messages: LoopMessages, admin: psycopg.Connection[tuple[object, ...]]
) -> None:
    answered = asyncio.get_running_loop().create_future()

    def end_it(answer: Answer) -> None:
        (held,) = messages._held
        admin.execute("select pg_terminate_backend(%s, 10000)", [held.connection.info.backend_pid])
        answered.set_result(answer)

    assert messages.send([ONE], end_it)
    assert await answered == [[(1,)]]
    assert await store.arun(c.Enqueue([JobSpec("a", "q", "k")], are_new=True)) == [c.Enqueued("a")]


async def test_a_callback_that_raises_keeps_no_connection(store: PostgresStore, messages: LoopMessages) -> None:
    loop, raised = asyncio.get_running_loop(), asyncio.Event()
    loop.set_exception_handler(lambda _loop, _context: raised.set())

    def fail(answer: Answer) -> None:
        raise ValueError

    assert messages.send([ONE], fail)
    await raised.wait()
    await turns()
    assert in_use(store) == 0


@pytest.mark.parametrize("size", [1])
def test_a_thread_gets_the_place_of_a_loop_that_was_stopped_before_its_answer(
    store: PostgresStore, messages: LoopMessages
) -> None:
    loop = asyncio.new_event_loop()
    failed: asyncio.Future[Answer] = loop.create_future()

    async def leave() -> None:
        assert messages.send([SLEEPS], failed.set_result)

    loop.run_until_complete(leave())
    (held,) = messages._held
    held._answer_due_s = 0.0
    assert store.run(c.Enqueue([JobSpec("a", "q", "k")])) == [c.Enqueued("a")]
    assert in_use(store) == 0

    answer = loop.run_until_complete(asyncio.wait_for(failed, LONG_S))
    assert isinstance(answer, MessageFailed)
    assert answer.is_lost
    assert loop.run_until_complete(messages.ask([ONE])) == [[(1,)]]
    assert in_use(store) == 0
    assert not messages._held
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
        assert not store._loop_messages._held
        sessions = "select count(*) from pg_stat_activity where application_name = 'loops'"
        wait_until(lambda: admin.execute(sessions).fetchone() in [(1,), (2,)], "sessions that were given up to end")


@pytest.mark.parametrize("size", [1])
def test_a_thread_gets_the_connection_of_a_loop_that_was_closed_before_its_answer(
    store: PostgresStore, messages: LoopMessages
) -> None:
    async def leave() -> None:
        assert messages.send([SLEEPS], lambda _: None)

    asyncio.run(leave())
    assert store.run(c.Enqueue([JobSpec("a", "q", "k")])) == [c.Enqueued("a")]


async def test_where_no_file_can_be_opened_the_connection_is_left_to_a_thread(
    store: PostgresStore, messages: LoopMessages
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        answer = await messages.ask([ONE])
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
    messages: LoopMessages, admin: psycopg.Connection[Any], is_given_up: bool
) -> None:
    selector = selectors.EpollSelector()

    async def lose_connection() -> list[tuple[int, int]]:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        assert messages.send([SLEEPS], answered.set_result)
        (held,) = messages._held
        process = held.connection.info.backend_pid
        if is_given_up:
            held.give_up()
        admin.execute("select pg_terminate_backend(%s, 10000)", [process])
        assert isinstance(await answered, MessageFailed)
        with select.epoll.fromfd(os.dup(selector.fileno())) as all_watched:
            return all_watched.poll(0)

    with idle_child(), asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert runner.run(lose_connection()) == []
