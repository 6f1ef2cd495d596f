"""A handler that ends in every way, before or after its job is lost: in a thread, on the event loop, in a process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from leasemill import App, Context, Fail, LeaseLost, Release, RetryAfter, Throttled

app: Final = App("memory:")

IN_TIME: Final = {"ends before": "done", "commits before": "committed"}
"""Ends that count, and the result of each."""
LATE: Final = (
    "returns a value",
    "returns None",
    "raises",
    "fails",
    "retries",
    "releases",
    "throttles",
    "commits",
    "leaves its commit",
)
"""Ends after the loss. A coroutine that ends so has swallowed its cancellation, a process its SystemExit."""
refused: Final[list[str]] = []
"""The commits that raised LeaseLost, by their end; of processes, those are elsewhere."""


@app.job(name="thread")
def in_thread(ctx: Context, end: str) -> str | None:
    return end_so(ctx, end)


@app.job(name="process", executor="process")
def in_process(ctx: Context, end: str) -> str | None:
    return end_so(ctx, end)


def end_so(ctx: Context, end: str) -> str | None:
    if end == "ends before":
        return IN_TIME[end]
    if end == "commits before":
        with ctx.commit() as tx:
            tx.set_result(IN_TIME[end])
    if end != "leaves its commit":
        await_loss(ctx)
    try:
        if end == "commits":
            with ctx.commit() as tx:
                tx.set_result("late")
        if end == "leaves its commit":
            with ctx.commit() as tx:
                await_loss(ctx)
                tx.set_result("late")
    except LeaseLost:
        refused.append(end)
    return late_end(end)


def await_loss(ctx: Context) -> None:
    with suppress(SystemExit):
        ctx.lost.wait(60)


@app.job(name="async")
async def on_the_loop(ctx: Context, end: str) -> str | None:
    if end == "ends before":
        return IN_TIME[end]
    if end == "commits before":
        async with ctx.commit() as tx:
            tx.set_result(IN_TIME[end])
    if end != "leaves its commit":
        await await_loss_on_the_loop(ctx)
    try:
        if end == "commits":
            async with ctx.commit() as tx:
                tx.set_result("late")
        if end == "leaves its commit":
            async with ctx.commit() as tx:
                await await_loss_on_the_loop(ctx)
                tx.set_result("late")
    except LeaseLost:
        refused.append(end)
    return late_end(end)


async def await_loss_on_the_loop(ctx: Context) -> None:
    while not ctx.lost.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.005)


def late_end(end: str) -> str | None:
    match end:
        case "raises":
            raise RuntimeError("after the loss")
        case "fails":
            raise Fail("after the loss")
        case "retries":
            raise RetryAfter(3_600)
        case "releases":
            raise Release(3_600)
        case "throttles":
            raise Throttled("mail", 3_600)
        case "returns None":
            return None
        case _:
            return "late"
