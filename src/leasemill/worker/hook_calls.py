"""Calls hooks beside the worker's work: async ones on its event loop, sync ones in threads.

One task calls them, and more when they take their time. The hooks of one event run one after the other, in the order of
declaration, in a context of their own. What must never happen here: an error of a hook that reaches the worker, a sync
hook on the event loop, or a hook that is waited for without end.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from leasemill.api.hooks import EventHook, JobEvent, hook_name, is_async_hook
from leasemill.api.logs import running
from leasemill.operator.wording import counted
from leasemill.store.threads import Threads
from leasemill.worker.coroutines import go_on, in_context, new_task

log = logging.getLogger("leasemill.hooks")

THREADS: Final = 10
"""How many threads hooks have at a time, at most."""
TASKS: Final = 100
"""How many events with async hooks are under way at a time, at most."""
TURN_S: Final = 0.005
"""After this time those that wait get as many tasks or threads again."""
LEFT_MOST: Final = 30
"""How many sync hooks that do not return can be left behind in their threads, before others have none."""
CALLS_MOST: Final = 200
"""How many calls a thread takes at a time, when many wait; it gives back those that it does not come to in a turn."""
PATIENCE_S: Final = 30.0
"""How long a hook may take."""
WAITING_MOST: Final = 1_000
"""When more calls than these wait, the worker claims fewer jobs."""


class Hook(NamedTuple):
    call: EventHook
    name: str
    is_async: bool


class Stage(NamedTuple):
    """The hooks of one event."""

    hooks: tuple[Hook, ...]
    is_sync: bool
    """All of them are."""


def stage_of(calls: Iterable[EventHook]) -> Stage | None:
    """None if there are none."""
    hooks = tuple(Hook(call, hook_name(call), is_async_hook(call)) for call in calls)
    return Stage(hooks, not any(hook.is_async for hook in hooks)) if hooks else None


Waiting: TypeAlias = deque[tuple[JobEvent, Stage]]


class _Line:
    """Events whose hooks are to be called: by one task, and by more, up to `most`, when that takes its time."""

    def __init__(
        self,
        most: int,
        context: contextvars.Context,
        call_some: Callable[[Waiting], Awaitable[int]],
        on_called: Callable[[int], None],
    ) -> None:
        self._most = most
        self._context = context
        self._call_some = call_some
        self._on_called = on_called
        self._loop = asyncio.get_running_loop()
        self._waiting: Waiting = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def add(self, event: JobEvent, stage: Stage) -> None:
        self._waiting.append((event, stage))
        if not self._tasks:
            self._open(1)
        elif self._timer is None and len(self._tasks) < self._most:
            self._timer = self._loop.call_later(TURN_S, self._widen)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _open(self, count: int) -> None:
        for _ in range(count):
            task = new_task(self._call_waiting(), self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _widen(self) -> None:
        """Some have waited for a turn."""
        self._timer = None
        count = len(self._tasks)
        if self._waiting and count < self._most:
            self._open(min(max(count, 1), self._most - count, len(self._waiting)))
            self._timer = self._loop.call_later(TURN_S, self._widen)

    async def _call_waiting(self) -> None:
        while self._waiting and not self._is_closed:
            self._on_called(await self._call_some(self._waiting))


class HookCalls:
    """On the event loop."""

    def __init__(self, worker_id: str, on_progress: Callable[[], None]) -> None:
        self._worker_id = worker_id
        self._on_progress = on_progress
        """Fewer calls wait than before."""
        self._context = contextvars.copy_context()
        self._threads = Threads(THREADS + LEFT_MOST, f"{worker_id}-hook")
        self._sync_line = _Line(THREADS, self._context, self._call_sync_ones, self._called)
        self._async_line = _Line(TASKS, self._context, self._call_async_ones, self._called)
        self._unfinished = 0
        self._all_finished = asyncio.Event()
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return self._unfinished == 0

    @property
    def overdue(self) -> int:
        """How many calls wait beyond what may wait."""
        return max(0, self._unfinished - WAITING_MOST)

    def add(self, event: JobEvent, stage: Stage) -> None:
        """Call these hooks soon; nobody waits for them but the end of the worker, after which none is called."""
        if self._is_closed:
            return
        self._unfinished += len(stage.hooks)
        (self._sync_line if stage.is_sync else self._async_line).add(event, stage)

    async def call(self, event: JobEvent, stage: Stage) -> None:
        """Call these hooks now, and return when they have ended, or have taken too long."""
        for hook in stage.hooks:
            if hook.is_async:
                await self._call_async(event, hook)
            else:
                await self._call_in_thread([(event, hook)])

    async def finished(self, until: float) -> None:
        """Wait for all of them, no longer than until this monotonic time."""
        if self._unfinished:
            self._all_finished.clear()
            waiting = asyncio.ensure_future(self._all_finished.wait())
            await asyncio.wait([waiting], timeout=max(0.0, until - time.monotonic()))
            waiting.cancel()
        if left := self._unfinished:
            fields = {"worker": self._worker_id}
            log.warning("%s had not ended when the worker stopped", counted(left, "hook"), extra=fields)

    def close(self) -> None:
        self._is_closed = True
        self._sync_line.close()
        self._async_line.close()
        self._threads.close()

    def _called(self, count: int) -> None:
        self._unfinished -= count
        if not self._unfinished:
            self._all_finished.set()
        self._on_progress()

    async def _call_sync_ones(self, waiting: Waiting) -> int:
        calls: list[tuple[JobEvent, Hook]] = []
        while waiting and len(calls) < CALLS_MOST:
            event, stage = waiting.popleft()
            calls += [(event, hook) for hook in stage.hooks]
        left = await self._call_in_thread(calls)
        waiting.extendleft(_by_event(left)[::-1])
        return len(calls) - len(left)

    async def _call_async_ones(self, waiting: Waiting) -> int:
        """In one task, for hooks that never wait need none of their own; those that do have it meanwhile."""
        count = 0
        ends_at = time.monotonic() + TURN_S
        while waiting and count < CALLS_MOST:
            event, stage = waiting.popleft()
            try:
                await in_context(self._context.copy(), self.call(event, stage))
            except asyncio.CancelledError:
                if self._is_closed:
                    raise
                self._log_cancelled(event)
            count += len(stage.hooks)
            if time.monotonic() > ends_at:
                break
        await asyncio.sleep(0)
        return count

    def _log_cancelled(self, event: JobEvent) -> None:
        """A hook has cancelled its own task, which calls the hooks of others too."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        log.error("a hook has cancelled the task it ran in, which changes nothing for the job", extra=event.log_fields)

    async def _call_async(self, event: JobEvent, hook: Hook) -> None:
        running.set(event)
        patience: asyncio.Timeout | None = None
        try:
            called = hook.call(event)
            try:
                waits_for = called.send(None)  # type: ignore[union-attr]  # it is async
            except StopIteration:
                return  # it never waited
            async with (patience := asyncio.timeout(PATIENCE_S)):
                await go_on(called, waits_for)  # type: ignore[arg-type]
        except BaseException as error:  # the user's hook: its SystemExit would end the event loop
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the worker stops
            if patience is not None and patience.expired():
                self._log_late(event, hook, "it was cancelled")
            else:
                self._log_failed(event, hook, error)

    async def _call_in_thread(self, calls: list[tuple[JobEvent, Hook]]) -> list[tuple[JobEvent, Hook]]:
        """Returns what was not called: the turn was over, or the one before it does not return."""
        made = _Calls(calls, self._context, self._log_failed)
        future = asyncio.wrap_future(self._threads.submit(made.run))
        while True:
            before = made.position
            await asyncio.wait([future], timeout=PATIENCE_S)
            if future.done():
                return calls[made.position :]
            if made.position == before:
                future.cancel()
                left = made.leave()
                self._log_late(*calls[before], "it is left behind in its thread")
                return left

    def _log_failed(self, event: JobEvent, hook: Hook, error: BaseException) -> None:
        sentence = "hook %s failed, which changes nothing for the job: %r"
        log.error(sentence, hook.name, error, exc_info=error, extra=event.log_fields)

    def _log_late(self, event: JobEvent, hook: Hook, what: str) -> None:
        sentence = "hook %s has not ended after %g s: %s, which changes nothing for the job"
        log.error(sentence, hook.name, PATIENCE_S, what, extra=event.log_fields)


class _Calls:
    """Calls of sync hooks, made in a thread one after the other."""

    def __init__(
        self,
        calls: list[tuple[JobEvent, Hook]],
        context: contextvars.Context,
        on_failed: Callable[[JobEvent, Hook, BaseException], None],
    ) -> None:
        self._calls = calls
        self._context = context
        self._on_failed = on_failed
        self._end = len(calls)
        self.position = 0
        """Which one is being made."""

    def run(self) -> None:
        context, of = self._context, None
        ends_at = time.monotonic() + TURN_S
        while self.position < self._end:
            event, hook = self._calls[self.position]
            if event is not of:
                if of is not None and time.monotonic() > ends_at:
                    return
                context, of = self._context.copy(), event
            context.run(self._call, event, hook)
            self.position += 1

    def leave(self) -> list[tuple[JobEvent, Hook]]:
        """Make no more of them; returns those. On the event loop."""
        self._end = 0
        return self._calls[self.position + 1 :]

    def _call(self, event: JobEvent, hook: Hook) -> None:
        running.set(event)
        try:
            _check_returned(hook.call(event))
        except BaseException as error:  # noqa: BLE001 (the user's hook; SystemExit ends no thread of ours)
            self._on_failed(event, hook, error)


def _by_event(calls: list[tuple[JobEvent, Hook]]) -> list[tuple[JobEvent, Stage]]:
    """Those of one event stay together: they run one after the other."""
    found: list[tuple[JobEvent, Stage]] = []
    for _, of_event in groupby(calls, key=lambda call: id(call[0])):
        one = list(of_event)
        found.append((one[0][0], Stage(tuple(hook for _, hook in one), True)))
    return found


def _check_returned(value: Any) -> None:
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("it returned a coroutine: declare the hook with `async def`")
