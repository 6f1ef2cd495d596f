"""How signals reach a worker: on its event loop, in a thread of its process, or in the loop of a supervisor.

A program that runs a `Worker` on its own loop gets them there. A process that is the worker's alone reads them in a
thread, because a handler may block the loop. A supervisor has no event loop: it waits on a socket. In all three,
Python's own handler does nothing: it runs between two steps of whatever the main thread does, where a lock may be held.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import asyncio

STOPS: Final = (signal.SIGTERM, signal.SIGINT)
SUPERVISORS: Final = (*STOPS, signal.SIGHUP, signal.SIGCHLD)


# On an event loop ------------------------------------------------------------------------------------------------


class _LoopSignals:
    """SIGTERM and SIGINT, as long as a worker of this loop wants them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stops: list[Callable[[], None]] = []
        self._loop = loop
        self._before: dict[int, Any] = {}
        for number in STOPS:
            try:
                # What another part of the program had asked of this loop cannot be read, and so not be restored.
                before = None if loop.remove_signal_handler(number) else signal.getsignal(number)
                loop.add_signal_handler(number, self._stop_all)
            except (NotImplementedError, RuntimeError, ValueError):
                continue  # not the main thread, or a platform without: whoever runs it calls stop()
            self._before[number] = before

    def _stop_all(self) -> None:
        for stop in list(self.stops):
            stop()

    def give_back(self) -> None:
        for number, before in self._before.items():
            self._loop.remove_signal_handler(number)
            if before is not None:
                signal.signal(number, before)


_taken_by: Final[dict[asyncio.AbstractEventLoop, _LoopSignals]] = {}


@contextmanager
def stopped_by_loop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Inside the block SIGTERM and SIGINT call `stop`, and those of other workers on this loop."""
    if loop not in _taken_by:
        _taken_by[loop] = _LoopSignals(loop)
    taken = _taken_by[loop]
    taken.stops.append(stop)
    try:
        yield
    finally:
        taken.stops.remove(stop)
        if not taken.stops:
            del _taken_by[loop]
            taken.give_back()


# In a thread of the worker's process -----------------------------------------------------------------------------


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop`, in a thread, for every signal that asks the process to end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may take signals: whoever runs it calls stop()
        return
    read, write = socket.socketpair()
    write.setblocking(False)
    threading.Thread(target=_read_signals, args=(read, stop), name="leasemill-signals", daemon=True).start()

    def noticed(number: int, frame: FrameType | None) -> None:
        """Python's own handler: only if somebody else took the wake-up descriptor must it write the number itself."""
        descriptor = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
        if descriptor != write.fileno():
            signal.set_wakeup_fd(descriptor)
            write.send(bytes([number]))

    descriptor = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, noticed) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        write.close()


def _read_signals(read: socket.socket, stop: Callable[[], None]) -> None:
    with read:
        while numbers := read.recv(64):
            for number in numbers:
                if number in STOPS:
                    stop()


# In a supervisor -------------------------------------------------------------------------------------------------


class SignalSocket:
    """A descriptor that can be read when there is something to do. Only in the main thread."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._had_terminal = _has_terminal()

    def __enter__(self) -> Self:
        self._descriptor_before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        for number in SUPERVISORS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` means it
                self._before[number] = signal.signal(number, _received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor_before)
        self._read.close()
        self._write.close()

    def fileno(self) -> int:
        return self._read.fileno()

    def wake(self) -> None:
        """Make the socket readable, from any thread."""
        with suppress(BlockingIOError):  # then there is enough to wake it
            self._write.send(b"\0")

    def signals(self) -> list[int]:
        """The numbers of the signals that arrived."""
        with suppress(BlockingIOError):
            return [number for number in self._read.recv(4096) if number]
        return []

    def has_lost_terminal(self) -> bool:
        """SIGHUP asks for a restart, unless it is what a terminal sends when it is closed."""
        return self._had_terminal and not _has_terminal()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _received(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has it."""
