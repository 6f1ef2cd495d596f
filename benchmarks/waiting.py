"""How soon is whoever waits for a job woken by its end, and what does waiting cost? For `file:` and `postgresql://`.

The worker is another process than the waiter. From the ack: stamped in the worker's process right after the store's ack
returned; the waiter, which makes the end durable for itself, may be there first (0). From the handler: stamped at its
last line. Both with time.monotonic, which is one clock for the whole machine.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any, Final, NamedTuple

from benchmarks.report import Bar, table
from leasemill import App, JobHandle, Worker
from leasemill.kernel import commands as c

SPAWN: Final = multiprocessing.get_context("spawn")
SAMPLES: Final = 100
CANCELLATIONS: Final = 10
DUE: Final = 10_000
WAITERS: Final = 100
SECONDS: Final = 10.0
LONGEST_S: Final = 60.0
RUN_S: Final = 0.02
"""How long an awaited job runs: its waiter has settled down when it ends."""
BEAT_APART_S: Final = 0.3


class Waits(NamedTuple):
    """Milliseconds for each job, and shares of a core."""

    idle_ack_ms: list[float]
    idle_handler_ms: list[float]
    due_ack_ms: list[float]
    due_handler_ms: list[float]
    stopped_ms: list[float]
    threads_share: float
    tasks_share: float


class Waiting:
    """The app of all processes, and what happened when in this one."""

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.acked_at: dict[str, float] = {}
        self.ended_at: dict[str, float] = {}
        self.began = 0
        waiting = self

        @self.app.job(queue="work")
        async def answer(number: int) -> int:
            await asyncio.sleep(RUN_S)
            waiting.ended_at[f"job-{number}"] = time.monotonic()
            return number

        @self.app.job(queue="work")
        async def other() -> None:
            await asyncio.sleep(0.05)

        @self.app.job(queue="long")
        async def long(number: int) -> None:
            waiting.began += 1
            try:
                await asyncio.sleep(LONGEST_S)
            finally:
                waiting.ended_at[f"long-{number}"] = time.monotonic()

        @self.app.job(queue="never")
        async def never() -> None: ...

        self.answer, self.other, self.long, self.never = answer, other, long, never

    def stamp_acks(self) -> None:
        store = self.app.store
        arun = store.arun

        async def stamped(command: c.Command[Any]) -> Any:
            outcome = await arun(command)
            if isinstance(command, c.Ack):
                now = time.monotonic()
                self.acked_at.update((report.job_id, now) for report in command.reports)
            return outcome

        store.arun = stamped  # type: ignore[method-assign]


def measured(url: str) -> Waits:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_work, args=(url, theirs))
    process.start()
    theirs.close()
    ours.recv()
    waiting = Waiting(url)
    idle = [_awaited(waiting, number) for number in range(SAMPLES)]
    stops = [_cancelled(waiting, ours, number) for number in range(CANCELLATIONS)]
    waiting.other.enqueue_many(waiting.other.call() for _ in range(DUE))
    due = [_awaited(waiting, SAMPLES + number) for number in range(SAMPLES)]
    time.sleep(BEAT_APART_S)  # the worker's last ack returns
    ours.send("end")
    acked_at, ended_at = ours.recv()
    process.join()
    waiting.app.store.close()
    return Waits(
        *_both(idle, acked_at, ended_at),
        *_both(due, acked_at, ended_at),
        [(ended_at[job_id] - at) * 1_000 for job_id, at in stops],
        _child(_threads_share, url),
        _child(_tasks_share, url),
    )


def _both(
    returned: Sequence[tuple[str, float]], acked_at: dict[str, float], ended_at: dict[str, float]
) -> tuple[list[float], list[float]]:
    from_ack = [max(0.0, at - acked_at[job_id]) * 1_000 for job_id, at in returned]
    return from_ack, [(at - ended_at[job_id]) * 1_000 for job_id, at in returned]


def _awaited(waiting: Waiting, number: int) -> tuple[str, float]:
    handle = waiting.answer.options(job_id=f"job-{number}", priority=9).enqueue(number)
    assert handle.result(timeout=LONGEST_S) == number
    return handle.id, time.monotonic()


def _cancelled(waiting: Waiting, pipe: Connection, number: int) -> tuple[str, float]:
    handle = waiting.long.options(job_id=f"long-{number}").enqueue(number)
    while True:
        pipe.send("began")
        if pipe.recv() > number:
            break
        time.sleep(0.005)
    time.sleep(BEAT_APART_S)
    at = time.monotonic()
    waiting.app.store.cancel([handle.id], by="benchmark", reason="measured")
    return handle.id, at


def _work(url: str, pipe: Connection) -> None:
    """The worker's process: works until it is asked to end, then sends what happened when."""
    logging.disable(logging.WARNING)
    waiting = Waiting(url)
    waiting.stamp_acks()
    worker = Worker(waiting.app, ["work", "long"], handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    pipe.send("works")
    while pipe.recv() == "began":
        pipe.send(waiting.began)
    pipe.send((waiting.acked_at, waiting.ended_at))
    worker.stop(now=True)
    thread.join()
    os._exit(0)


# What waiting costs ------------------------------------------------------------------------------------------------


def _child(function: Callable[[str], float], url: str) -> float:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_answer, args=(function, url, theirs))
    process.start()
    share: float = ours.recv()
    process.join()
    return share


def _answer(function: Callable[[str], float], url: str, pipe: Connection) -> None:
    pipe.send(function(url))
    pipe.close()
    os._exit(0)


def _waited_for(url: str) -> list[JobHandle[None]]:
    """Jobs that are due and nobody works on."""
    waiting = Waiting(url)
    return waiting.never.enqueue_many(waiting.never.call() for _ in range(WAITERS))


def _threads_share(url: str) -> float:
    with ThreadPoolExecutor(WAITERS) as executor:
        waiters = [executor.submit(handle.result, SECONDS + 3) for handle in _waited_for(url)]
        time.sleep(1.5)
        share = _share_of_core(lambda: time.sleep(SECONDS))
        assert not any(waiter.done() for waiter in waiters)
    return share


def _tasks_share(url: str) -> float:
    async def wait() -> float:
        tasks = [asyncio.ensure_future(handle.aresult(SECONDS + 3)) for handle in _waited_for(url)]
        await asyncio.sleep(1.5)
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(SECONDS)
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return share

    return asyncio.run(wait())


def _share_of_core(rest: Callable[[], None]) -> float:
    began, cpu = time.monotonic(), time.process_time()
    rest()
    return (time.process_time() - cpu) / (time.monotonic() - began)


# The report --------------------------------------------------------------------------------------------------------


def show(waits: Waits) -> None:
    table(
        "waiter in another process than the worker: milliseconds until it returns",
        ("", "ack p50", "ack p99", "handler's end p50", "p99"),
        [
            ("idle queue", *_quantiles(waits.idle_ack_ms), *_quantiles(waits.idle_handler_ms)),
            (f"{DUE:,} jobs due", *_quantiles(waits.due_ack_ms), *_quantiles(waits.due_handler_ms)),
        ],
    )
    print(
        f"{WAITERS} waiters over {SECONDS:.0f} s, their jobs due: {waits.threads_share:.2%} of a core in threads, "
        f"{waits.tasks_share:.2%} in tasks; a cancelled handler is stopped after {median(waits.stopped_ms):.0f} ms"
    )


def _quantiles(values: list[float]) -> tuple[str, str]:
    return f"{median(values):.1f}", f"{quantiles(values, n=100)[98]:.1f}"


def bars(waits: Waits) -> list[Bar]:
    return [
        Bar("waiter: ack to return p50, idle queue, ms", median(waits.idle_ack_ms), 5, at_least=False),
        Bar("waiter: ack to return p50, 10,000 jobs due, ms", median(waits.due_ack_ms), 5, at_least=False),
        Bar("100 waiting threads, percent of a core", 100 * waits.threads_share, 1, at_least=False),
        Bar("100 waiting tasks, percent of a core", 100 * waits.tasks_share, 1, at_least=False),
        Bar("cancel to stopped handler p50, ms", median(waits.stopped_ms), 200, at_least=False),
    ]
