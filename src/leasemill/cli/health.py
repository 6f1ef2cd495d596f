"""`leasemill health`: an exit code for probes."""

from __future__ import annotations

import sys
from typing import Final

import click
import msgspec

from leasemill.cli.lazy_group import EXIT_REFUSED
from leasemill.cli.output import emit
from leasemill.cli.store_options import on_store
from leasemill.operator.wording import counted, listed, without_room
from leasemill.operator.workers import ahead_or_behind, clocks_apart
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, records

CLOCKS_SHOWN: Final = 5


@click.command()
@click.option(
    "--max-age",
    default=15.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="The oldest heartbeat that counts as healthy, in seconds.",
)
@click.option("--worker", "worker_id", help="Check this worker, with all its processes. Default: any worker.")
@on_store
def health(store: Store, max_age: float, worker_id: str | None, as_json: bool) -> None:
    """Exit with 0 if a worker with a usable slot has sent a heartbeat recently, otherwise with 1.

    With --worker NAME, that worker must have; if it has several processes, each of NAME.1 to NAME.N. The exit code is 3
    if the store is unavailable.

    A slot is stuck, and not usable, if its handler does not return after its job timed out or was lost.

    A full disk under a file: store is reported, and does not change the exit code: restarting a worker frees nothing.

    The command reads no jobs, so it is fast however many there are.
    """
    found = [
        (record, age_s)
        for record, age_s in records(store.presence)
        if worker_id in (None, record.worker) or worker_id == record.supervisor
    ]
    live = [record for record, age_s in found if age_s <= max_age]
    usable = {record.worker for record in live if not record.is_stuck}
    stuck, slots = sum(len(record.stuck) for record in live), sum(record.concurrency for record in live)
    youngest, youngest_s = min(found, key=lambda one: one[1], default=(None, None))
    processes = processes_of(worker_id, youngest)
    is_healthy = usable.issuperset(processes) if processes else bool(usable)
    if youngest_s is None:
        why = "no worker has sent a heartbeat" if worker_id is None else f"no heartbeat from {worker_id}"
    else:
        why = f"last heartbeat {youngest_s:.1f} s ago" + (f"; {stuck} of {slots} slots are stuck" if stuck else "")
    if processes:
        missing = [name for name in processes if name not in usable]
        counts = f"{len(processes) - len(missing)} of {counted(len(processes), 'process', 'processes')}"
        why = f"{counts}, {why}" + (f"; not healthy: {', '.join(missing)}" if missing else "")
    apart = clocks_apart(live)
    if apart:
        shown = listed([f"{worker} ({ahead_or_behind(ahead_s)} it)" for worker, ahead_s in apart.items()], CLOCKS_SHOWN)
        why += f"; clocks that differ from the store's: {shown}"
    room = store.room()
    if room is not None and room.is_full:
        why += f"; the disk is full: {without_room(room.needed_bytes)}"
    ages = {record.worker: age_s for record, age_s in found}
    emit(
        as_json,
        {
            "is_healthy": is_healthy,
            "workers": len(found),
            "youngest_s": youngest_s,
            "slots": slots,
            "stuck": stuck,
            "clocks_apart": apart,
            "disk": msgspec.to_builtins(room),
            **(
                {"processes": {name: {"is_healthy": name in usable, "age_s": ages.get(name)} for name in processes}}
                if processes
                else {}
            ),
        },
        f"{'healthy' if is_healthy else 'unhealthy'}: {why}",
    )
    if not is_healthy:
        sys.exit(EXIT_REFUSED)


def processes_of(worker_id: str | None, youngest: WorkerRecord | None) -> list[str]:
    """Return the processes that a worker must have, by the latest record of one; none for a single process."""
    if worker_id is None or youngest is None or youngest.supervisor != worker_id:
        return []
    return [f"{worker_id}.{number}" for number in range(1, youngest.processes + 1)]
