"""Which process an order to a worker is for, as the workers' records have it (O12)."""

from __future__ import annotations

from leasemill.errors import NotFound, Refused
from leasemill.store.presence import Presence
from leasemill.store.records import WorkerRecord, records


def ordered_instance(presence: Presence, worker_id: str) -> str:
    """The instance that runs as this worker now. Raises NotFound if none does, Refused if it takes no orders."""
    record, age_s = found_worker(presence, worker_id)
    check_takes_orders(record, age_s)
    return record.instance


def found_worker(presence: Presence, worker_id: str) -> tuple[WorkerRecord, float]:
    """A worker's record, and how many seconds ago it was published."""
    for record, age_s in records(presence):
        if record.worker == worker_id:
            return record, age_s
    raise NotFound(
        f"there is no worker {worker_id!r}: it has stopped, or never ran; leasemill workers lists those that run"
    )


def check_takes_orders(record: WorkerRecord, age_s: float) -> None:
    """Refuse a worker that would not obey."""
    if record.is_stale(age_s):
        raise NotFound(
            f"worker {record.worker!r} has sent no heartbeat for {age_s:.0f} s: it is gone or cut off, and would not "
            "read an order"
        )
    if not record.takes_orders:
        version = f"Leasemill {record.version}" if record.version else "an older Leasemill"
        raise Refused(
            f"worker {record.worker!r} runs {version}, which takes no orders: stop it "
            f"with SIGTERM (process {record.pid} on {record.host}), or upgrade it"
        )


def check_instance(presence: Presence, worker_id: str, instance: str) -> None:
    """Refuse an order that is not for the instance that runs as this worker now."""
    if ordered_instance(presence, worker_id) != instance:
        raise NotFound(f"worker {worker_id!r} runs in another process than {instance!r}: read its record again")
