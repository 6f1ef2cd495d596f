"""`leasemill health`: an exit code for probes."""

from __future__ import annotations

import sys

import click

from leasemill.cli.lazy import EXIT_REFUSED
from leasemill.cli.opening import on_store
from leasemill.cli.output import emit
from leasemill.store.base import Store
from leasemill.store.records import records


@click.command()
@click.option(
    "--max-age",
    default=15.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="The oldest heartbeat that counts as healthy, in seconds.",
)
@click.option("--worker", "worker_id", help="Check this worker. Default: any worker.")
@on_store
def health(store: Store, max_age: float, worker_id: str | None, as_json: bool) -> None:
    """Exit with 0 if a worker with a usable slot sent a heartbeat lately, else with 1.

    Exit with 3 if the store is unavailable. A slot is stuck, and not usable, while its handler does not return although
    its job has timed out or was lost.

    It reads no jobs, so it stays fast however many there are.
    """
    found = [(record, age_s) for record, age_s in records(store.presence) if worker_id in (None, record.worker)]
    ages = [age_s for _, age_s in found]
    live = [record for record, age_s in found if age_s <= max_age]
    is_healthy = any(not record.is_stuck for record in live)
    stuck, slots = sum(len(record.stuck) for record in live), sum(record.concurrency for record in live)
    youngest_s = min(ages, default=None)
    if youngest_s is None:
        why = "no worker has sent a heartbeat" if worker_id is None else f"no heartbeat from {worker_id}"
    else:
        why = f"last heartbeat {youngest_s:.1f} s ago" + (f"; {stuck} of {slots} slots are stuck" if stuck else "")
    emit(
        as_json,
        {
            "is_healthy": is_healthy,
            "workers": len(ages),
            "youngest_s": youngest_s,
            "slots": slots,
            "stuck": stuck,
        },
        f"{'healthy' if is_healthy else 'unhealthy'}: {why}",
    )
    if not is_healthy:
        sys.exit(EXIT_REFUSED)
