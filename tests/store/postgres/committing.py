"""What tests of users' commits share: a table of the user's, and a job in the test's own hands."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Final

import psycopg

from leasemill import App, Context, JobType, Retry, Worker
from leasemill.api.lease_loss import LossSignal
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.store import PostgresStore

Connection = psycopg.Connection[Any]
SOON: Final = Retry(max=3, base=0, cap=0)
WRITE: Final = "update balance set cents = cents + %s where account = 'ann'"


def cents(bank: Connection) -> int:
    row = bank.execute("select cents from balance").fetchone()
    assert row is not None
    return int(row[0])


def nothing(app: App) -> JobType[..., Any]:
    if "nothing" not in app.jobs:

        @app.job
        def nothing() -> int | None:
            return None

    return app.jobs["nothing"]


def held(app: App, store: PostgresStore | None = None) -> tuple[Context, c.Lease]:
    """A job in this test's hands, and the context its handler would get."""
    job = nothing(app)
    store = store or app.store  # type: ignore[assignment]
    assert isinstance(store, PostgresStore)
    store.enqueue([JobSpec(store.entropy.new_id(), "default", "nothing", b"{}")])
    (lease,) = store.claim("w", ["default"], 1)
    return Context(lease, job, store, LossSignal(math.inf), time.monotonic() + 90), lease


async def drained(app: App, **options: Any) -> Worker:
    worker = Worker(app, drain=True, handle_signals=False, **options)
    await asyncio.wait_for(worker.run(), 30)
    return worker


def idle_in_transaction(bank: Connection) -> int:
    row = bank.execute(
        "select count(*) from pg_stat_activity where application_name = 'leasemill commit' and state <> 'idle'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def refused(app: App, lease: c.Lease) -> list[tuple[str, str]]:
    job = app.store.job(lease.job.id)
    assert job is not None
    return [(refusal.verb.value, refusal.reason.value) for refusal in job.refusals]


async def entered(context: Context, is_async: bool, then: Callable[[], object] | None = None) -> None:
    """Commits a write, with something happening in the block."""
    if is_async:
        async with context.commit() as tx:
            await tx.execute(WRITE, [7])
            if then is not None:
                then()
    else:
        await asyncio.to_thread(entered_sync, context, then)


def entered_sync(context: Context, then: Callable[[], object] | None) -> None:
    with context.commit() as tx:
        tx.execute(WRITE, [7])
        if then is not None:
            then()
