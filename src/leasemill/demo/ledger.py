"""The demo's app: deposits to accounts, one lane for each account.

Every deposit commits one entry, as its result and as a follow-up job that books it, and leaves marks outside the
boundary.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from leasemill.api.app import App
from leasemill.api.call import Call
from leasemill.api.context import Context
from leasemill.demo.trail import Trail, What
from leasemill.errors import LeaseLost
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.model import JobState
from leasemill.store.base import Store

WORK_VARIABLE: Final = "LEASEMILL_DEMO_WORK_S"
LEASE_S: Final = 2.0
DEPOSITS: Final = "deposits"
LEDGER: Final = "ledger"

app = App()


class Entry(Struct, frozen=True):
    """One line of the ledger."""

    account: str
    number: int
    cents: int


@app.job(queue=DEPOSITS, lane="account", lease=LEASE_S)
def deposit(ctx: Context, account: str, number: int, cents: int) -> Entry:
    trail = Trail.of_process()
    trail.leave("began", ctx)
    time.sleep(float(os.environ[WORK_VARIABLE]))
    entry = Entry(account, number, cents)
    outcome: What = "failed"
    try:
        with ctx.commit() as tx:
            tx.set_result(entry)
            tx.enqueue(book, entry)
        outcome = "committed"
    except LeaseLost:
        outcome = "refused"
        raise
    finally:
        trail.leave(outcome, ctx)
    return entry


@app.job(queue=LEDGER, lease=LEASE_S)
async def book(entry: Entry) -> Entry:
    return entry


def deposits(jobs: int, lanes: int) -> dict[str, Entry]:
    """Return the expected entries of the ledger by the ids of their jobs, in the order these are enqueued."""
    entries = (Entry(f"account-{it % lanes:02}", it // lanes, 100 + it) for it in range(jobs))
    return {f"deposit-{entry.account}-{entry.number:05}": entry for entry in entries}


def calls(entries: Mapping[str, Entry]) -> Iterator[Call[Entry]]:
    for job_id, entry in entries.items():
        yield deposit.options(job_id=job_id).call(entry.account, entry.number, entry.cents)


def counts(store: Store, queue: str) -> dict[JobState, int]:
    """Count the jobs of one queue by state; the store may have many other queues."""
    views = store.queues(limit=BATCH_ITEMS, after=queue[:-1])
    return next((view.counts for view in views if view.name == queue), {})
