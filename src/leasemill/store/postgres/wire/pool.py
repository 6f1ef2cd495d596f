"""A bounded set of connections, the last used first: for threads, and for event loops.

A connection that was lost, or is left in a transaction, is not used again. In a forked child a pool is empty: the
parent's connections are not ours to use or to close. Why not psycopg_pool is in docs/decisions/0019-connections.md.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus

from leasemill.errors import Unavailable

ConnectionT = TypeVar("ConnectionT", bound=psycopg.BaseConnection[Any])


class _Idle(Generic[ConnectionT]):
    """Connections that nobody uses."""

    def __init__(self, size: int, timeout_s: float, advice: str) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._advice = advice
        self._is_closed = False
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._idle: list[ConnectionT] = []

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            self._inherited = self._idle
            self._start_over()

    def _put(self, connection: ConnectionT, *, is_usable: bool) -> None:
        """Without a wait, so that nothing can interrupt it."""
        if connection.closed:
            self._drop()  # the others are as old
        elif self._is_closed or not is_usable or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.pgconn.finish()
        else:
            self._idle.append(connection)

    def _drop(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.pgconn.finish()

    def _closed(self) -> Unavailable:
        return Unavailable("this PostgreSQL store is closed; open another")

    def _exhausted(self) -> Unavailable:
        return Unavailable(f"all {self._size} {self._advice.format(timeout_s=self._timeout_s)}")


class Pool(_Idle[ConnectionT]):
    """For threads."""

    def _start_over(self) -> None:
        super()._start_over()
        self._changed = threading.Condition()
        self._in_use = 0

    def take(self, connect: Callable[[], ConnectionT]) -> ConnectionT:
        self._check_process()
        with self._changed:
            if not self._changed.wait_for(self._may_take, self._timeout_s):
                raise self._exhausted()
            if self._is_closed:
                raise self._closed()
            self._in_use += 1
            if self._idle:
                return self._idle.pop()
        try:
            return connect()
        except BaseException:
            self.give_back(None)
            raise

    def _may_take(self) -> bool:
        return self._is_closed or self._in_use < self._size

    def give_back(self, connection: ConnectionT | None, *, is_usable: bool = True) -> None:
        """None: there is none after all."""
        with self._changed:
            if connection is not None:
                self._put(connection, is_usable=is_usable)
            self._in_use -= 1
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """No more are given out. Those in use have so long to be given back."""
        self._check_process()
        with self._changed:
            self._is_closed = True
            self._drop()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._in_use == 0, timeout_s)


class AsyncPool(_Idle[ConnectionT]):
    """For event loops: as many for each of them."""

    def _start_over(self) -> None:
        super()._start_over()
        self._free: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def take(self, connect: Callable[[], Awaitable[ConnectionT]]) -> ConnectionT:
        if self._is_closed:
            raise self._closed()
        self._check_process()
        free = self._free_here()
        try:
            async with asyncio.timeout(self._timeout_s if free.locked() else None):
                await free.acquire()
        except TimeoutError:
            raise self._exhausted() from None
        try:
            return self._idle.pop() if self._idle else await connect()
        except BaseException:
            free.release()
            raise

    def give_back(self, connection: ConnectionT, *, is_usable: bool = True) -> None:
        self._put(connection, is_usable=is_usable)
        self._free_here().release()

    def close(self) -> None:
        self._check_process()
        self._is_closed = True
        self._drop()

    def _free_here(self) -> asyncio.Semaphore:
        return self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._size))
