"""What the workers of the deaths' chaos run, and what every run of it leaves behind.

A run appends what it does to a file of its process, outside the store, in one write each: what is there happened. Its
effect is its commit: the result names the run, a receipt follows, and on PostgreSQL a row of the user's own table,
which nothing keeps from being there twice.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, json

from leasemill import App, Context, JobType, Limit
from leasemill.errors import LeaseLost
from leasemill.store.url import URL_VARIABLE

TRAILS_VARIABLE: Final = "LEASEMILL_LAB_TRAILS"
"""The folder of the trails."""
EFFECTS: Final = "create table effects (job text not null, attempt int8 not null, fence int8 not null)"
EFFECT: Final = "insert into effects values (%s, %s, %s)"
RUN_S: Final = 1.6
"""The longest that a run takes."""
LANES: Final = 3
PLACES: Final = 2

What: TypeAlias = Literal["began", "committed", "refused", "ended"]


class Mark(Struct, frozen=True):
    """One line of a trail. `at`: the monotonic clock, which all processes of a machine share."""

    at: float
    what: What
    job: str
    attempt: int
    fence: int
    worker: str
    pid: int


class Effect(Struct, frozen=True):
    """The result of a job: which of its runs took effect."""

    attempt: int
    fence: int
    worker: str


def read_trails(folder: Path) -> list[Mark]:
    """The marks of all processes, oldest first."""
    lines = (line for path in folder.iterdir() for line in path.read_bytes().splitlines())
    return sorted((json.decode(line, type=Mark) for line in lines), key=lambda mark: mark.at)


@cache
def _descriptor(pid: int) -> int:
    """Of the trail of this process; `pid`: a forked child has another."""
    path = Path(os.environ[TRAILS_VARIABLE]) / f"{pid}-{time.monotonic_ns()}.jsonl"
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def leave(what: What, ctx: Context) -> None:
    pid = os.getpid()
    mark = Mark(time.monotonic(), what, ctx.job_id, ctx.attempt, ctx.fence, ctx.worker, pid)
    os.write(_descriptor(pid), json.encode(mark) + b"\n")


@contextmanager
def on_trail(ctx: Context) -> Iterator[None]:
    leave("began", ctx)
    try:
        yield
    except LeaseLost:
        leave("refused", ctx)
        raise
    finally:
        leave("ended", ctx)


def is_on_postgresql() -> bool:
    return not os.environ[URL_VARIABLE].startswith("file:")


def effect_of(ctx: Context) -> Effect:
    return Effect(ctx.attempt, ctx.fence, ctx.worker)


def drawn_s(ctx: Context) -> float:
    """How long this run works, before its commit and again after it: others than those before it."""
    return RUN_S / 2 * zlib.crc32(f"{ctx.job_id} {ctx.attempt}".encode()) / 2**32


app = App()


@app.job(queue="receipts", max_expirations=1_000)
async def receipt(ctx: Context) -> None:
    with on_trail(ctx):
        await asyncio.sleep(0)


async def on_the_loop(ctx: Context) -> Effect:
    with on_trail(ctx):
        await asyncio.sleep(drawn_s(ctx))
        async with ctx.commit() as tx:
            tx.set_result(effect_of(ctx))
            tx.enqueue(receipt)
            if is_on_postgresql():
                await tx.execute(EFFECT, [ctx.job_id, ctx.attempt, ctx.fence])
        leave("committed", ctx)
        await asyncio.sleep(drawn_s(ctx) / 2)
    return effect_of(ctx)


def in_a_thread(ctx: Context) -> Effect:
    with on_trail(ctx):
        time.sleep(drawn_s(ctx))
        with ctx.commit() as tx:
            tx.set_result(effect_of(ctx))
            tx.enqueue(receipt)
            if is_on_postgresql():
                tx.execute(EFFECT, [ctx.job_id, ctx.attempt, ctx.fence])
        leave("committed", ctx)
        time.sleep(drawn_s(ctx) / 2)
    return effect_of(ctx)


def kind(name: str, handler: Any, **options: Any) -> JobType[[], Effect]:
    """With the default lease, and as often as it takes."""
    made: JobType[[], Effect] = app.job(name=name, queue="work", max_expirations=1_000, **options)(handler)
    return made


KINDS: Final = {
    "async": kind("async", on_the_loop),
    "sync": kind("sync", in_a_thread),
    "in-turn": kind("in-turn", on_the_loop),
    "limited": kind("limited", in_a_thread, limit=Limit(PLACES, name="places")),
}
"""Those in turn are in lanes: who dies has the head. A limited one that dies has a place."""
