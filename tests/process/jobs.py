"""The handlers that the process tests run in workers of their own: they die, block, hang and wait as they are asked.

Each leaves marks outside the boundary and commits one effect, a receipt. A gate is a file: a handler that waits for one
goes on when the test makes it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sqlite3
import threading
import time
from contextlib import closing, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

from leasemill import App, Context
from leasemill.demo.trail import Trail, What
from leasemill.errors import LeaseLost

LEASE_S = 2.0
SHORT_LEASE_S = 1.0
TIMEOUT_S = 0.7

app = App()
patient = App()
"""Jobs with the default lease: beside shorter ones their workers would look for expired leases more often."""


def gate(trail: Trail, name: str) -> Path:
    return trail.path.with_name(f"{name}.gate")


def effect(ctx: Context, trail: Trail) -> str:
    """The one effect of a job: a receipt, and the name of the worker as its result."""
    came_to: What = "failed"
    try:
        with ctx.commit() as tx:
            tx.set_result(ctx.worker)
            tx.enqueue(receipt)
        came_to = "committed"
    except LeaseLost:
        came_to = "refused"
        raise
    finally:
        trail.leave(came_to, ctx)
    return ctx.worker


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.003)


@app.job(queue="receipts")
async def receipt() -> None: ...


@app.job(queue="bystanders", lease=LEASE_S)
def bystander(ctx: Context, padding: str = "") -> str:
    """What must go on whatever happens beside it."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    time.sleep(0.01)
    return effect(ctx, trail)


_kept: list[bytes] = []


@app.job(queue="bystanders", lease=LEASE_S)
def leaks(ctx: Context, megabytes: int) -> str:
    """Its process keeps so much memory, each byte of it written."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    _kept.append(b"x" * (megabytes * 1_000_000))
    return effect(ctx, trail)


def _waits(ctx: Context, first_only: bool, name: str) -> str:
    trail = Trail.of_process()
    trail.leave("began", ctx)
    if ctx.attempt == 1 or not first_only:
        wait_for(gate(trail, name))
    return effect(ctx, trail)


@app.job(queue="hit", lease=LEASE_S)
def waits(ctx: Context, name: str, first_only: bool = True) -> str:
    return _waits(ctx, first_only, name)


@app.job(queue="hit", lease=SHORT_LEASE_S)
def waits_briefly(ctx: Context, name: str) -> str:
    return _waits(ctx, True, name)


@patient.job(queue="patient")
def waits_with_the_default_lease(ctx: Context, name: str) -> str:
    return _waits(ctx, True, name)


@patient.job(queue="patient")
async def sleeps_patiently(ctx: Context, seconds: float) -> str:
    """On the loop, and can be cancelled there."""
    return await _sleeps(ctx, seconds)


@patient.job(queue="patient")
async def calls_a_thread(ctx: Context) -> None:
    Trail.of_process().leave("began", ctx)
    await asyncio.to_thread(time.sleep, 3600)


@patient.job(queue="patient")
async def is_deaf(ctx: Context) -> None:
    Trail.of_process().leave("began", ctx)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


@patient.job(queue="patient")
async def starts_a_thread(ctx: Context) -> None:
    """One that the interpreter would wait for when it exits."""
    threading.Thread(target=time.sleep, args=[3600]).start()
    Trail.of_process().leave("began", ctx)


@patient.job(queue="patient")
def starts_a_child(ctx: Context) -> None:
    """One that the interpreter would wait for when it exits; it ends when its gate is open."""
    trail = Trail.of_process()
    get_context("spawn").Process(target=wait_for, args=[gate(trail, "child")]).start()
    trail.leave("began", ctx)


@patient.job(queue="patient")
async def blocks_the_loop_for_ever(ctx: Context) -> None:
    Trail.of_process().leave("began", ctx)
    time.sleep(3600)  # noqa: ASYNC251 (what is tested)


@app.job(queue="hit", lease=SHORT_LEASE_S, max_expirations=2)
def dies(ctx: Context, how: Literal["exit", "segfault"], times: int) -> str:
    """Takes its worker with it, as often as it is asked."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    if ctx.attempt <= times:
        wait_for(gate(trail, f"dies-{ctx.worker}"))
        if how == "exit":
            os._exit(3)
        ctypes.string_at(0)
    return effect(ctx, trail)


@app.job(queue="hit", lease=SHORT_LEASE_S, timeout=TIMEOUT_S, retry=0)
def never_returns_in_a_thread(ctx: Context) -> None:
    Trail.of_process().leave("began", ctx)
    time.sleep(3600)


@app.job(queue="hit", lease=LEASE_S)
async def sleeps(ctx: Context, seconds: float) -> str:
    """On the loop, and can be cancelled there."""
    return await _sleeps(ctx, seconds)


async def _sleeps(ctx: Context, seconds: float) -> str:
    trail = Trail.of_process()
    trail.leave("began", ctx)
    await asyncio.sleep(seconds)
    async with ctx.commit() as tx:
        tx.set_result(ctx.worker)
        tx.enqueue(receipt)
    trail.leave("committed", ctx)
    return ctx.worker


@app.job(queue="hit", lease=SHORT_LEASE_S)
def applies_directly(ctx: Context) -> None:
    """Without the boundary: the effect is applied by whoever runs, and nobody can refuse it."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    if ctx.attempt == 1:
        wait_for(gate(trail, "first"))
    trail.leave("committed", ctx)


@app.job(queue="hit", lease=SHORT_LEASE_S)
def books_elsewhere(ctx: Context, database: str, is_guarded: bool, waits_first: bool) -> None:
    """Its effect is a row in a database of somebody else's; the first run waits before or behind it."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    if waits_first and ctx.attempt == 1:
        wait_for(gate(trail, "first"))
    came_to: What = "failed"
    try:
        with closing(sqlite3.connect(database)) as books, ctx.once(books) if is_guarded else books:
            books.execute("insert into booked values (?)", [ctx.worker])
        came_to = "committed"
    except LeaseLost:
        came_to = "refused"
        raise
    finally:
        trail.leave(came_to, ctx)
    if not waits_first and ctx.attempt == 1:
        wait_for(gate(trail, "never"))


@app.job(queue="hit", lease=SHORT_LEASE_S)
def commits_and_listens(ctx: Context) -> str:
    """Ends when it is asked to; its effect has been applied."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    effect(ctx, trail)
    ctx.lost.wait(60)
    return ctx.worker


@app.job(queue="hit", lease=SHORT_LEASE_S)
def commits_and_waits(ctx: Context) -> str:
    """Is still running when its effect has been applied."""
    trail = Trail.of_process()
    trail.leave("began", ctx)
    effect(ctx, trail)
    wait_for(gate(trail, "after the commit"))
    return ctx.worker
