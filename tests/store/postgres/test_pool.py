"""The pool of connections, without a server: how many, in which order, and what becomes of those who wait."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg.pq import TransactionStatus

from leasemill.errors import Unavailable
from leasemill.store.postgres.driver.pool import Pool

LIMIT_S = 30


class Session:
    """As much of a connection as a pool looks at."""

    def __init__(self) -> None:
        self.closed = False
        self.info = SimpleNamespace(transaction_status=TransactionStatus.IDLE)
        self.pgconn = SimpleNamespace(finish=self.finish)

    def finish(self) -> None:
        self.closed = True


def pool_of(size: int, timeout_s: float = LIMIT_S) -> Pool[Any]:
    return Pool[Any](size, timeout_s, "all {size} are in use")


async def connected() -> Session:
    return Session()


def until_waiting(pool: Pool[Any], count: int = 1) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(pool._waiting) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_last_used_is_given_out_first() -> None:
    pool = pool_of(2)
    first, second = pool.take(Session), pool.take(Session)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(Session) is second


@pytest.mark.parametrize("status", [TransactionStatus.INTRANS, TransactionStatus.ACTIVE])
def test_one_left_in_a_transaction_is_closed(status: TransactionStatus) -> None:
    pool = pool_of(1)
    left = pool.take(Session)
    left.info.transaction_status = status
    pool.give_back(left)
    assert left.closed
    assert pool.take(Session) is not left


def test_with_one_that_was_lost_the_idle_ones_go() -> None:
    pool = pool_of(2)
    lost, idle = pool.take(Session), pool.take(Session)
    pool.give_back(idle)
    lost.closed = True
    pool.give_back(lost)
    assert idle.closed


def test_a_place_is_free_again_when_no_connection_could_be_made() -> None:
    pool = pool_of(1, timeout_s=0.01)

    def refuse() -> Session:
        raise OSError("refused")

    for _ in range(3):
        with pytest.raises(OSError, match="refused"):
            pool.take(refuse)
    assert isinstance(pool.take(Session), Session)
    with pytest.raises(Unavailable, match="all 1 are in use"):
        pool.take(Session)


def test_who_waits_in_a_thread_gets_what_is_given_back() -> None:
    pool = pool_of(1)
    taken = pool.take(Session)
    got: list[Session] = []
    waiting = threading.Thread(target=lambda: got.append(pool.take(Session)))
    waiting.start()
    until_waiting(pool)
    pool.give_back(taken)
    waiting.join(LIMIT_S)
    assert got == [taken]


async def test_who_is_cancelled_while_waiting_takes_no_connection() -> None:
    pool = pool_of(1)
    taken = pool.take(Session)
    waiting = [asyncio.create_task(pool.atake(connected)) for _ in range(2)]
    await asyncio.sleep(0)  # both tasks begin
    assert len(pool._waiting) == 2
    pool.give_back(taken)
    waiting[0].cancel()  # its turn has come, and it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert await asyncio.wait_for(waiting[1], LIMIT_S) is taken


async def test_a_pool_that_stays_exhausted_is_unavailable_on_an_event_loop() -> None:
    pool = pool_of(1, timeout_s=0.01)
    taken = await pool.atake(connected)
    with pytest.raises(Unavailable, match="all 1 are in use"):
        await pool.atake(connected)
    pool.give_back(taken)
    assert await pool.atake(connected) is taken


def test_closing_wakes_who_waits_and_takes_back_what_is_in_use() -> None:
    pool = pool_of(1)
    taken = pool.take(Session)
    failed: list[str] = []

    def wait() -> None:
        try:
            pool.take(Session)
        except Unavailable as error:
            failed.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until_waiting(pool)
    closing = threading.Thread(target=pool.close, args=(LIMIT_S,))
    closing.start()
    waiting.join(LIMIT_S)
    assert failed == ["this PostgreSQL store is closed; open another"]
    assert closing.is_alive()
    pool.give_back(taken)
    closing.join(LIMIT_S)
    assert taken.closed
    assert not closing.is_alive()


def test_a_forked_child_begins_with_none_and_leaves_its_parents_alone() -> None:
    pool = pool_of(2)
    idle, in_use = pool.take(Session), pool.take(Session)
    pool.give_back(idle)
    pool.after_fork()
    pool.give_back(in_use)
    assert pool.take_idle() is None
    taken = [pool.take(Session), pool.take(Session)]
    assert not {idle, in_use}.intersection(taken)
    for one in taken:
        pool.give_back(one)
    pool.close(0)
    assert not idle.closed
    assert not in_use.closed
