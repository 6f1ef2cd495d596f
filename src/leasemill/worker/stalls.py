"""A blocked event loop: noticed, named, and not charged to the jobs that only wait for it.

While async handlers run, the loop notes several times a second that it is alive, and a thread looks at how long ago
that was. When it is too long the thread looks up what the loop is in the middle of. What must never happen here: a
wait of the thread for the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

from leasemill.api import logs
from leasemill.worker.metrics import Metrics
from leasemill.worker.run import Run
from leasemill.worker.threads import start_background

log = logging.getLogger("leasemill.worker")

TICK_S: Final = 0.05
"""Between two signs of life of the loop."""
LOOK_S: Final = 0.1
"""Between two looks of the thread."""
STALL_S: Final = 0.25
"""From when on time without a sign of life is not charged to jobs."""
BLOCKED_S: Final = 1.0
"""After how long a warning names what blocks the loop; then after twice as long, and so on."""
STACK_FRAMES: Final = 12


class Stalls:
    """How long the event loop stood still, and because of whom."""

    def __init__(
        self,
        worker_id: str,
        metrics: Metrics,
        *,
        running: Callable[[], Iterable[Run]],
        on_end: Callable[[BaseException | None], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_s = 0.0
        """How long it has stood still so far, all in all."""
        self._worker_id = worker_id
        self._metrics = metrics
        self._running = running
        """A copy: it is called in the thread too."""
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._alive_at = math.inf
        """The last sign of life; infinite while nothing has to be watched."""
        self._blocker: tuple[float, Run] | None = None
        """Whose handler was found to run, and the last sign of life before that."""
        self._logged_at = 0.0
        self._warn_after_s = BLOCKED_S
        self._stopped = threading.Event()
        self._wanted = threading.Event()
        self._on_end = on_end

    def start(self) -> None:
        start_background("loop-watch", self._run, self._on_end)

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()

    # On the loop -------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """An async handler begins: from now on the loop is watched."""
        if self._alive_at == math.inf:
            self._alive_at = self._monotonic()
            self._wanted.set()
            self._loop.call_later(TICK_S, self._tick)
        else:
            self.alive()

    def alive(self) -> None:
        """The loop runs. If it did not for a while, that time is nobody's but the one's who blocked it."""
        now, before = self._monotonic(), self._alive_at
        if before == math.inf:
            return
        self._alive_at = now
        stalled_s = now - before
        if stalled_s <= STALL_S:
            return
        self.total_s += stalled_s
        self._metrics.loop_stalled_seconds += stalled_s
        if self._blocker is not None and self._blocker[0] == before:
            self._blocker[1].blocked_s += stalled_s
        if self._logged_at == before:
            log.warning("the event loop runs again after %.1f s", stalled_s, extra={"worker": self._worker_id})

    def _tick(self) -> None:
        self.alive()
        if self._stopped.is_set() or not any(it.task is not None for it in self._running()):
            self._wanted.clear()
            self._alive_at = math.inf
        else:
            self._loop.call_later(TICK_S, self._tick)

    def excused_s(self, run: Run) -> float:
        """How long this handler has waited for a loop that others blocked, as far as it was not excused before."""
        return self.total_s - run.stalled_before_s - run.blocked_s

    # In the thread -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Find out what blocks the loop, if something does; log it when it lasts."""
        alive_at = self._alive_at
        stalled_s = self._monotonic() - alive_at
        if stalled_s < LOOK_S:
            return
        frame, run = self._at_work()
        if run is not None:
            self._blocker = (alive_at, run)
        if self._logged_at != alive_at:
            self._warn_after_s = BLOCKED_S
        if stalled_s >= self._warn_after_s:
            if self._logged_at != alive_at:
                self._metrics.loop_blocked += 1
            self._logged_at = alive_at
            self._warn_after_s *= 2
            self._log_blocked(stalled_s, frame, run)

    def _at_work(self) -> tuple[FrameType | None, Run | None]:
        """What the loop is in the middle of, and for which job."""
        frame = sys._current_frames().get(self._loop_thread)
        task = asyncio.current_task(self._loop)
        if task is None:
            return frame, None
        for run in self._running():
            if run.task is task and not run.is_in_line:
                return frame, run
        return frame, _parent_of(task)

    def _log_blocked(self, stalled_s: float, frame: FrameType | None, run: Run | None) -> None:
        fields: dict[str, Any] = {"worker": self._worker_id} if run is None else run.log_fields
        log.warning(
            "the event loop has been blocked for %.1f s by %s: no async handler runs meanwhile; "
            "make it a plain `def` handler, or call what blocks with asyncio.to_thread\n%s",
            stalled_s,
            "a task or callback outside the handlers" if run is None else f"the handler of {run.lease.job.kind}",
            _stack(frame, run),
            extra=fields,
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wanted.wait()
            while self._alive_at < math.inf and not self._stopped.wait(LOOK_S):
                self.look()


def _parent_of(task: asyncio.Task[Any]) -> Run | None:
    """The handler that made this task: its context has been copied from the handler's. Python 3.11 does not show it."""
    get_context = getattr(task, "get_context", None)
    parent = None if get_context is None else get_context().get(logs.running)
    return parent if isinstance(parent, Run) else None


def _stack(frame: FrameType | None, run: Run | None) -> str:
    """Where the loop is, from the handler's function on if it is among the callers."""
    if frame is None:
        return ""
    frames = [it for it, _ in traceback.walk_stack(frame)][::-1]
    if run is not None:
        code = run.handler.function.__code__
        begins = [index for index, it in enumerate(frames) if it.f_code is code]
        frames = frames[begins[0] :] if begins else frames
    lines = traceback.StackSummary.extract((it, it.f_lineno) for it in frames[-STACK_FRAMES:])
    return "".join(lines.format()).rstrip()
