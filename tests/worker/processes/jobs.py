"""Jobs for handlers' processes: each marks in a file that it began, and locks its job until its process is gone."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from leasemill import App, Context

TRAIL_VARIABLE = "LEASEMILL_TEST_PROCESSES"
app = App("memory:", retry=0)
log = logging.getLogger("shop")


class Mark(NamedTuple):
    what: str
    job_id: str
    attempt: int
    pid: int
    at: float


def folder() -> Path:
    return Path(os.environ[TRAIL_VARIABLE])


def mark(ctx: Context, what: str) -> None:
    line = f"{what} {ctx.job_id} {ctx.attempt} {os.getpid()} {time.monotonic()}\n"
    with (folder() / "trail").open("a") as trail:
        trail.write(line)


def marks(what: str | None = None) -> list[Mark]:
    try:
        lines = (folder() / "trail").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = [Mark(one[0], one[1], int(one[2]), int(one[3]), float(one[4])) for one in map(str.split, lines)]
    return [one for one in found if what in (None, one.what)]


def begin(ctx: Context) -> None:
    """Two runs of a job at a time would fail here: the lock is the process's, and gone with it."""
    descriptor = os.open(folder() / f"lock-{ctx.job_id.replace('/', '-')}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        mark(ctx, "overlapped")
    mark(ctx, "began")


@app.job(executor="process", timeout=0.3, retry=1)
def never_returns(ctx: Context) -> None:
    begin(ctx)
    while True:
        pass


@app.job(executor="process", timeout=0.3)
def ignores_everything(ctx: Context) -> None:
    begin(ctx)
    while True:
        try:
            while True:
                time.sleep(1)
        except BaseException:  # noqa: BLE001
            mark(ctx, "ignored")


@app.job(executor="process", timeout=0.3)
def holds_the_interpreter(ctx: Context) -> None:
    begin(ctx)
    ctypes.PyDLL(None).sleep(60)  # without releasing the lock that all threads of the process need


@app.job(executor="process", max_expirations=2)
def segfaults(ctx: Context) -> None:
    begin(ctx)
    ctypes.string_at(0)


@app.job(executor="process", max_expirations=2)
def killed_by_the_system(ctx: Context) -> None:
    """What the system does to a process that takes the last memory."""
    begin(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(executor="process")
def eats_memory(ctx: Context) -> None:
    begin(ctx)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, limits[1]))
    try:
        eaten = []
        while True:
            eaten.append(bytearray(256 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@app.job(executor="process", max_expirations=1)
def exits(status: int) -> None:
    log.warning("about to exit with %d", status)
    os._exit(status)


@app.job(executor="process", max_expirations=1)
def closes_descriptors() -> None:
    os.closerange(3, 256)
    time.sleep(60)


@app.job(executor="process")
def sleeps(ctx: Context, seconds: float) -> None:
    begin(ctx)
    try:
        time.sleep(seconds)
    finally:
        mark(ctx, "cleaned")


@app.job(executor="process")
async def sleeps_in_a_loop(ctx: Context, seconds: float) -> None:
    begin(ctx)
    try:
        await asyncio.sleep(seconds)
    finally:
        mark(ctx, "cleaned")


@app.job(executor="process", timeout=0.3)
def starts_a_program(ctx: Context) -> None:
    """What it starts inherits the lock: it must be gone, too."""
    begin(ctx)
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (folder() / "program").write_text(str(program.pid))
    while True:
        time.sleep(1)


@app.job
def bystander() -> int:
    return os.getpid()


@app.job(executor="process")
def process_bystander() -> int:
    return os.getpid()


@app.job
def followup(of: str) -> str:
    return of


@app.job(executor="process")
def commits(ctx: Context, amount: int) -> dict[str, int] | None:
    with ctx.commit() as tx:
        tx.enqueue(followup, ctx.job_id)
        tx.set_result({"pid": os.getpid(), "amount": amount})
    return None


@app.job(executor="process")
async def commits_in_a_loop(ctx: Context, amount: int) -> dict[str, int] | None:
    async with ctx.commit() as tx:
        tx.enqueue(followup, ctx.job_id)
        tx.set_result({"pid": os.getpid(), "amount": amount})
    return None


@app.job(executor="process")
def pays(ctx: Context, account: str, cents: int) -> None:
    with ctx.commit() as tx:
        tx.execute("update balance set cents = cents + %s where account = %s", (cents, account))


@app.job(executor="process")
def pays_in_its_own_session(ctx: Context, account: str, cents: int, conninfo: str) -> None:
    import psycopg  # noqa: PLC0415  (an extra)

    with psycopg.connect(conninfo) as connection, ctx.commit(connection):
        connection.execute("update balance set cents = cents + %s where account = %s", (cents, account))


@app.job(executor="process")
def commits_and_dies(ctx: Context) -> str | None:
    with ctx.commit() as tx:
        tx.set_result("done")
    os._exit(1)


@app.job(executor="process")
def enqueues_and_waits(ctx: Context) -> str:
    handle = followup.enqueue("a handler")
    assert app.store.presence.records() is not None
    assert app.store.totals().seq >= 2
    return handle.result(timeout=30)


@app.job(executor="process")
def writes(ctx: Context) -> None:
    sys.stdout.write("flood " * 100_000)
    sys.stdout.flush()
    log.info("one")
    ctx.logger.info("two", extra={"shelf": 7})
    log.debug("not asked for")
    try:
        raise KeyError("three")
    except KeyError:
        log.exception("caught")
    thread = threading.Thread(target=log.info, args=("from a thread",))
    thread.start()
    thread.join()
    log.info("last")


@app.job(executor="process")
def makes_progress(ctx: Context) -> None:
    for done in range(10_000):
        ctx.progress(done, 10_000, "counting")
    ctx.progress(9_999, 10_000, "waiting")
    while not (folder() / "go").exists():
        time.sleep(0.005)


@app.job(executor="process")
def returns(value: str) -> str:
    return value


@app.job(executor="process")
def raises(text: str) -> None:
    raise ValueError(text)


@contextmanager
def trail(path: Path) -> Iterator[None]:
    os.environ[TRAIL_VARIABLE] = str(path)
    try:
        yield
    finally:
        del os.environ[TRAIL_VARIABLE]
