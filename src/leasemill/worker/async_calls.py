"""Calls async handlers on the event loop: those that never wait one after another in one task, the others in tasks of
their own.

A task for each job is a fifth of the loop's time where handlers return at once. Whether a handler waits is seen when it
does: then it goes on in the task it began in, and another task calls the next ones. Each call has a context of its own:
what one job sets must not show in another. What must never happen here: a cancellation that meets another run.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from leasemill.kernel import commands as c
from leasemill.worker.coroutines import go_on, new_task
from leasemill.worker.handler import Ended, Report, call_async
from leasemill.worker.run import Phase, Run

SLICE_S: Final = 0.002
"""How long handlers are called one after another before the loop has its turn."""
OWN_TASKS: Final = 50
"""How many calls of a kind have tasks of their own after one that waited."""


class _BegunCall(NamedTuple):
    """A handler that waits after its first step."""

    run: Run
    context: contextvars.Context
    called: Coroutine[Any, Any, Report]
    waits_for: Any


class AsyncCalls:
    """Calls the async handlers of one worker, on its event loop."""

    def __init__(self, on_ends: Callable[[list[Ended]], None]) -> None:
        self._on_ends = on_ends
        self._context = contextvars.copy_context()
        self._in_line: deque[tuple[Run, float]] = deque()
        self._caller: asyncio.Task[None] | None = None
        """Who calls those in line."""
        self._own_tasks: dict[str, int] = {}
        """How many more calls of a kind have tasks of their own."""

    def start(self, run: Run, jitter: float) -> None:
        """`run.task` is where it runs, or will."""
        kind = run.lease.job.kind
        left = self._own_tasks.get(kind)
        if left is not None:
            if left > 1:
                self._own_tasks[kind] = left - 1
            else:
                del self._own_tasks[kind]
            run.task = new_task(self._call(run, jitter), self._context.copy())
            return
        self._in_line.append((run, jitter))
        run.is_in_line = True
        run.task = self._caller or self._new_caller()

    async def _call(self, run: Run, jitter: float) -> None:
        self._on_ends([(run, await call_async(run, jitter))])

    def _new_caller(self) -> asyncio.Task[None]:
        self._caller = new_task(self._call_all(), self._context.copy())
        return self._caller

    async def _call_all(self) -> None:
        """Until nobody is in line, or a handler waits: then until that one has ended."""
        task = self._caller
        assert task is not None
        try:
            while self._in_line:
                waiting = self._call_some(task)
                if waiting is not None:
                    self._leave_line()
                    self._on_ends([(waiting.run, await go_on(waiting.called, waiting.waits_for, waiting.context))])
                    return
                if task.cancelling():  # a handler has cancelled its own task
                    return
                if self._in_line:
                    await asyncio.sleep(0)
        finally:
            if self._caller is task:
                self._leave_line()

    def _call_some(self, task: asyncio.Task[None]) -> _BegunCall | None:
        """Call those in line, and whoever follows them, for a slice of time. Ends are reported when all in line were
        called, so that their slots are filled together. Returns a handler that waits."""
        ended: list[Ended] = []
        slice_until = time.monotonic() + SLICE_S
        while self._in_line:
            run, jitter = self._in_line.popleft()
            run.is_in_line = False
            if run.stop is not None or run.phase is not Phase.RUNNING:  # stopped before it was called
                ended.append((run, c.ReleaseReport(run.lease.job.id, run.lease.token)))
            else:
                run.task = task
                context, called = self._context.copy(), call_async(run, jitter)
                try:
                    waits_for = context.run(called.send, None)
                except StopIteration as end:
                    run.ended_at = time.monotonic()
                    run.task = None  # what others in line do is not its doing
                    ended.append((run, end.value))
                else:
                    self._own_tasks[run.lease.job.kind] = OWN_TASKS
                    if ended:
                        self._on_ends(ended)
                    return _BegunCall(run, context, called, waits_for)
                if task.cancelling() or run.ended_at >= slice_until:
                    break
            if not self._in_line:
                self._on_ends(ended)
                ended = []
        if ended:
            self._on_ends(ended)
        return None

    def _leave_line(self) -> None:
        """Whoever is in line is called by another task."""
        self._caller = None
        if self._in_line:
            self._new_caller()
