"""A bounded set of connections, the last used first: for threads and for event loops.

A connection that was lost, or is left in a transaction, is not used again. In a forked child a pool is empty: the
parent's connections are not ours to use or to close. Why not psycopg_pool is in docs/decisions/0019-connections.md.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from leasemill.errors import Unavailable

ConnectionT = TypeVar("ConnectionT", bound=psycopg.BaseConnection[Any])


class Pool(Generic[ConnectionT]):
    """At most `size` in use; who comes when all are waits for the next that is given back, in order."""

    def __init__(self, size: int, timeout_s: float, exhausted: str) -> None:
        self._size = size
        self._timeout_s = timeout_s
        self._exhausted = exhausted.format(size=size, timeout_s=timeout_s)
        self._is_closed = False
        self.before_waits: Callable[[], None] = lambda: None
        """Called in a thread that is about to wait for a connection."""
        self._start_over()

    def after_fork(self) -> None:
        self._inherited = self._idle  # the parent's, not ours to use or to close
        self._start_over()

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[ConnectionT] = []
        self._own: weakref.WeakSet[ConnectionT] = weakref.WeakSet()
        """Not those that were in use in the parent when it forked."""
        self._in_use = 0
        self._waiting: deque[Future[None]] = deque()

    def take(self, connect: Callable[[], ConnectionT]) -> ConnectionT:
        turn = self._enter()
        try:
            if turn is not None:
                self.before_waits()
                turn.result(self._timeout_s)
            return self._last_used() or self._owned(connect())
        except BaseException as error:
            self._leave(turn, error)
            raise

    async def atake(self, connect: Callable[[], Awaitable[ConnectionT]]) -> ConnectionT:
        turn = self._enter()
        try:
            if turn is not None:
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.wrap_future(turn)
            return self._last_used() or self._owned(await connect())
        except BaseException as error:
            self._leave(turn, error)
            raise

    def take_idle(self) -> ConnectionT | None:
        """Take a connection that is open and not in use, without a wait; None if there is none.

        It is never the last of several: an event loop that a handler blocks reads no answer, and the worker's threads
        must not wait for that loop.
        """
        with self._changed:
            if self._is_closed or self._in_use >= max(1, self._size - 1):
                return None
            connection = self._last_used()
            if connection is not None:
                self._in_use += 1
            return connection

    @property
    def is_wanted(self) -> bool:
        """True if a caller waits for a connection, or would have to; or waits for all of them to be given back."""
        return self._is_closed or self._in_use >= self._size

    def give_back(self, connection: ConnectionT, *, is_usable: bool = True) -> None:
        """Without a wait, so that nothing can interrupt it."""
        with self._changed:
            if connection not in self._own:
                return
            if connection.closed:
                self._drop()  # the others are as old
            elif self._is_closed or not is_usable or connection.info.transaction_status != TransactionStatus.IDLE:
                connection.pgconn.finish()
            else:
                self._idle.append(connection)
            self._release()

    def forget(self, connection: ConnectionT) -> None:
        """Another takes its place; whoever has it does not give it back. Nothing is done to it here."""
        with self._changed:
            if connection in self._own:
                self._own.discard(connection)
                self._release()

    def close(self, timeout_s: float) -> None:
        """No more are given out. Those in use have so long to be given back."""
        with self._changed:
            self._is_closed = True
            self._drop()
            while self._waiting:
                turn = self._waiting.popleft()
                if turn.set_running_or_notify_cancel():
                    turn.set_exception(store_closed())
            self._changed.wait_for(lambda: self._in_use == 0, timeout_s)

    def _enter(self) -> Future[None] | None:
        """None: now. Otherwise the caller's turn, when one is given back."""
        with self._changed:
            if self._is_closed:
                raise store_closed()
            if self._in_use < self._size:
                self._in_use += 1
                return None
            turn: Future[None] = Future()
            self._waiting.append(turn)
            return turn

    def _leave(self, turn: Future[None] | None, error: BaseException) -> None:
        """Without a connection, of its own accord or because there is none."""
        if turn is not None and turn.cancel():
            if isinstance(error, TimeoutError):
                raise Unavailable(self._exhausted) from None
        elif turn is None or turn.exception() is None:
            with self._changed:
                self._release()

    def _release(self) -> None:
        """The next takes over, if somebody waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if turn.set_running_or_notify_cancel():
                turn.set_result(None)
                return
        self._in_use -= 1
        self._changed.notify_all()

    def _owned(self, connection: ConnectionT) -> ConnectionT:
        self._own.add(connection)
        return connection

    def _last_used(self) -> ConnectionT | None:
        try:
            return self._idle.pop()  # in one step: threads share the list
        except IndexError:
            return None

    def _drop(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.pgconn.finish()


def store_closed() -> Unavailable:
    return Unavailable("this PostgreSQL store is closed; open another")
