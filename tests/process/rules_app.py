"""What the workers of the rules' chaos run: members of groups, steps of chains, jobs under limits, ticks of schedules.

Ids follow from the numbers of what they belong to, so that whoever runs again makes the same jobs, and a job that is
missing or too many can be named.
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from leasemill import PREVIOUS, App, Call, Context, Fail, JobType, Limit, Rate, Retry, chain

LEASE_S = 1.0
WORK_S = 0.6
"""The longest that a handler works before its effect."""
ADDED = 2
STEPS = 3

app = App()


class Flavour(StrEnum):
    """What a group goes through."""

    PLAIN = "plain"
    FAILS = "one member fails"
    REDRIVEN = "one member fails and is redriven"
    RETRIES = "members fail at first"
    ADDS = "members add members"
    CHAINS = "members are chains"
    CANCELLED = "cancelled while it runs"
    EMPTY = "no members"


def flavour_of(number: int) -> Flavour:
    flavours = list(Flavour)
    return flavours[number % len(flavours)]


# Groups and chains ----------------------------------------------------------------------------------------------


@app.job(queue="producers", lease=LEASE_S, max_expirations=1_000)
def produce(number: int, count: int, over_s: float) -> None:
    """Makes a group whose members are due over a time; killed in the middle, the next run finds what was made."""
    name, flavour = f"group-{number:03}", flavour_of(number)
    with app.group(name, then=has_succeeded.call(name), on_end=has_ended.call(name)) as group:
        for call in members(name, flavour, count, over_s):
            group.enqueue(call)
            time.sleep(0.002)


def share(name: str) -> float:
    """From 0 to 1, the same for the same name."""
    return zlib.crc32(name.encode()) / 2**32


def gate(name: str) -> str:
    """A file in the workers' folder: with it, the member that fails does not."""
    return f"{name}.gate"


def members(name: str, flavour: Flavour, count: int, over_s: float) -> Iterator[Call[Any]]:
    for place in range(0 if flavour is Flavour.EMPTY else count):
        job_id = f"{name}-{place}"
        member = member_of.options(job_id=job_id, delay=over_s * share(job_id))
        match flavour:
            case Flavour.FAILS | Flavour.REDRIVEN:
                yield member.call(place, needs=gate(name) if place == 1 else "")
            case Flavour.RETRIES:
                yield member.call(place, retries=True)
            case Flavour.ADDS:
                yield adds.options(job_id=job_id, delay=over_s * share(job_id)).call(ADDED)
            case Flavour.CHAINS:
                yield chain(member.call(0), *(adds_one.call(PREVIOUS) for _ in range(STEPS - 1)))
            case _:
                yield member.call(place)


@app.job(queue="members", retry=Retry(max=20, base=0.01, cap=0.05), lease=LEASE_S, max_expirations=1_000)
async def member_of(ctx: Context, place: int, needs: str = "", retries: bool = False) -> int:
    await asyncio.sleep(WORK_S * share(f"{ctx.job_id} {ctx.attempt}"))
    if needs and not await asyncio.to_thread(Path(needs).exists):
        raise Fail(f"there is no {needs}")
    if retries and ctx.retries == 0:
        raise ValueError("at first")
    if place % 2:
        async with ctx.commit() as tx:
            tx.set_result(place)
        await asyncio.sleep(WORK_S * share(ctx.job_id) / 2)
    return place


@app.job(queue="members", lease=LEASE_S, max_expirations=1_000)
def adds(ctx: Context, count: int) -> None:
    time.sleep(WORK_S * share(f"{ctx.job_id} {ctx.attempt}"))
    with ctx.commit():
        for place in range(count):
            ctx.group.enqueue(member_of.call(place))
    time.sleep(WORK_S * share(ctx.job_id) / 2)


@app.job(queue="members", lease=LEASE_S, max_expirations=1_000)
async def adds_one(ctx: Context, number: int) -> int:
    await asyncio.sleep(WORK_S * share(f"{ctx.job_id} {ctx.attempt}"))
    return number + 1


@app.job(queue="callbacks", lease=LEASE_S, max_expirations=1_000)
async def has_succeeded(group: str) -> str:
    return group


@app.job(queue="callbacks", lease=LEASE_S, max_expirations=1_000)
def has_ended(group: str) -> str:
    time.sleep(WORK_S * share(group))
    return group


# Limits ---------------------------------------------------------------------------------------------------------

CUSTOMERS = [f"customer-{number}" for number in range(10)]
FOR_EACH = Limit(1, by="customer", name="for-each")


def under(limit: list[Limit | Rate], kind: str, queue: str = "limited") -> JobType[[str], None]:
    @app.job(name=kind, queue=queue, limit=limit, lease=LEASE_S, max_expirations=1_000)
    async def works(ctx: Context, customer: str) -> None:
        await asyncio.sleep(WORK_S * share(f"{ctx.job_id} {ctx.attempt}") / 3)

    return works


limited = [under([Limit(1 + number % 3, name=f"api-{number}")], f"limited_{number}") for number in range(10)]
limited.append(under([FOR_EACH], "limited_for_each"))
limited.append(under([FOR_EACH, Limit(2, name="api-1")], "limited_by_both"))

backlog = {
    "one": (under([Limit(1, name="one")], "one_at_a_time", "backlog"), 2),
    "five": (under([Limit(5, name="five")], "five_at_a_time", "backlog"), 12),
    "ten-a-second": (under([Rate(10, per=1, burst=5, name="ten-a-second")], "ten_a_second", "backlog"), 6),
}
"""By limit, a kind that always has jobs waiting, and how many of them are added for each kill."""

# Schedules ------------------------------------------------------------------------------------------------------

RULES_VARIABLE = "LEASEMILL_LAB_RULES"
INTERVALS_S = {"every-1": 1, "every-2": 2, "every-3": 3, "every-5": 5, "every-7": 7}


@app.job(queue="ticks", lease=LEASE_S, max_expirations=1_000)
async def tick(ctx: Context, every_s: int) -> str:
    await asyncio.sleep(WORK_S * share(f"{ctx.job_id} {ctx.attempt}") / 3)
    return ctx.job_id


if "schedules" in os.environ.get(RULES_VARIABLE, ""):
    for name, every_s in INTERVALS_S.items():
        when = timedelta(seconds=every_s)
        app.cron(when, tick, name=name, args={"every_s": every_s}, overlap="allow", missed="all")
