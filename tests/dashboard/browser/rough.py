"""What people put into fields when nobody watches: names without a space, other scripts, payloads of a megabyte.

The pictures are looked at with this data in the store, because a page that is in order with short names may not be with
these.
"""

from __future__ import annotations

from typing import Final

import msgspec

from leasemill.api import schedule_commands
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, OnFailure, Policy, Rules
from leasemill.kernel.schedule import ScheduleSpec
from leasemill.store.base import Store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record
from tests.dashboard.filling import fill
from tests.dashboard.filling_control import fill_control

TEXT: Final = "Überweisung für 山田太郎 🧾 مرحبا"
UNBROKEN: Final = "customer_notification_dispatcher_for_the_northern_region_v2"
LONG_QUEUE: Final = f"{UNBROKEN}.retries.with-a-long-tail"
LONG_LANE: Final = f"{UNBROKEN}-{UNBROKEN}"
LONG_SCHEDULE: Final = f"{UNBROKEN}-nightly"
HUGE: Final = "huge-payload-of-one-megabyte-01J8ZC3M7Q0V5S2K9T4R6W8X1Y"


def fill_rough(store: Store) -> None:
    fill(store, TEXT)
    fill_control(store, TEXT)
    _many_queues(store)
    _huge(store)
    _long_names(store)
    _workers(store)


def _many_queues(store: Store) -> None:
    names = [f"tenant-{number:02}.{name}" for number in range(8) for name in ("import", "export")]
    for index, name in enumerate(names):
        store.enqueue([JobSpec(f"{name}-{number}", name, "sync", b"{}") for number in range(1 + index % 5)])
    store.set_policy(names[0], Policy(max_retries=0, on_failure=OnFailure.BLOCK), by="ann", reason="in order")
    store.pause(names[-1], by="ann", reason=f"the importer of {UNBROKEN} is being moved")


def _huge(store: Store) -> None:
    lines = [{"line": number, "text": TEXT, "sku": f"{UNBROKEN}-{number}"} for number in range(6_000)]
    store.enqueue([JobSpec(HUGE, "imports", f"module.path.{UNBROKEN}", msgspec.json.encode({"lines": lines}))])
    (lease,) = store.claim("importer", ["imports"], 1)
    store.start([c.StartReport(HUGE, lease.token)])
    error = f"ImportError: {UNBROKEN * 3} {TEXT}\n" + "\n".join(f"  File {UNBROKEN}, line {n}" for n in range(60))
    store.nack([c.NackReport(HUGE, lease.token, error, is_permanent=True)])


def _long_names(store: Store) -> None:
    group = f"{UNBROKEN}-group"
    store.create_group(group)
    for number in range(3):
        spec = JobSpec(f"{UNBROKEN}-{number}", LONG_QUEUE, f"module.path.{UNBROKEN}", b"[]", LONG_LANE)
        store.enqueue([spec])
    store.enqueue([JobSpec(f"member-of-{UNBROKEN}", LONG_QUEUE, UNBROKEN, b"{}", rules=Rules(group=group))])
    (lease,) = store.claim(f"{UNBROKEN}.worker.example.internal-48213-9f8e7d6c", [LONG_QUEUE], 1)
    store.start([c.StartReport(lease.job.id, lease.token)])
    store.extend([c.LeaseRef(lease.job.id, lease.token)])
    at_once = JobSpec(f"expired-{UNBROKEN}", LONG_QUEUE, UNBROKEN, b"{}", policy=Policy(lease_ttl_us=1_000))
    store.enqueue([at_once])
    store.claim(f"{UNBROKEN}-gone", [LONG_QUEUE], 10)
    call = JobSpec("", LONG_QUEUE, UNBROKEN, b"{}")
    spec_of = ScheduleSpec(LONG_SCHEDULE, "*/15 2-5 * * mon-fri", "America/Argentina/Buenos_Aires", call)
    schedule_commands.set_schedule(store, spec_of, by="ann", reason=f"moved from cron: {TEXT} {UNBROKEN}")


def _workers(store: Store) -> None:
    """One that can be asked to stop, and one without a heartbeat, however soon or late a test looks."""
    for number, interval_s in enumerate((3_600.0, -0.5)):
        name = f"{UNBROKEN}-{number}"
        store.claim(name, ["tenant-02.export"], 1)
        run = RunningJob(
            f"{UNBROKEN}-{number}", UNBROKEN, 1, 7_200.0, 412_000, 1_250_000, f"{TEXT} {UNBROKEN}", 4_193_215
        )
        record = WorkerRecord(
            *(name, f"{UNBROKEN}.example.internal", 4_193_214, 0.0, 1e6, interval_s),
            *({LONG_QUEUE: 1}, 120, False, [run], {"succeeded": 12_345_678.0, "refused": 1_234.0}),
            version="2026.11.17-rc1+northern",
            instance=name,
            takes_orders=True,
        )
        store.presence.publish(name, encode_record(record))
