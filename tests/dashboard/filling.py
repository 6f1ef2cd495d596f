"""Puts one job into each situation that a page shows. No clock is needed: what is late was cancelled before."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, OnFailure, Order, Policy, WorkerOrder
from leasemill.store.base import Store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record

BLOCKING = Policy(max_retries=0, on_failure=OnFailure.BLOCK)


@dataclass(frozen=True)
class Filled:
    """Ids of the jobs; `text` is in every field that takes any text."""

    text: str
    ready: str = "ready-1"
    scheduled: str = "scheduled-1"
    leased: str = "leased-1"
    succeeded: str = "succeeded-1"
    failed: str = "failed-1"
    retried: str = "retried-1"
    cancelled: str = "cancelled-1"
    zombie: str = "zombie-1"
    behind: str = "behind-1"


def fill(store: Store, text: str = "plain text") -> Filled:
    """`text`: what callers, workers and operators may write as they like."""
    found = Filled(text)
    worker = f"worker {text}"[:100]
    _succeed(store, worker, found.succeeded, text)
    _fail(store, worker, found.failed, text)
    _retry(store, worker, found.retried, text)
    _zombie(store, worker, found.zombie, text)
    _block(store, worker, found.behind, text)
    store.enqueue([spec(found.leased, "leased", text)])
    (held,) = store.claim(worker, ["leased"], 1)
    store.start([c.StartReport(held.job.id, held.token)])
    store.enqueue([spec(found.cancelled, "mail", text)])
    store.cancel([found.cancelled], by=f"ann {text}", reason=f"reason {text}")
    store.enqueue(
        [
            spec(found.ready, "mail", text),
            JobSpec(found.scheduled, "mail", "send", run_at=store.time() + 3_600 * SECOND),
        ]
    )
    running = RunningJob(found.leased, "send", 1, 1.5, done=1, total=3, note=text)
    _publish(store, worker, running)
    return found


def spec(job_id: str, queue: str, text: str) -> JobSpec:
    payload = as_json({"body": text, "password": "hunter2", "list": [text]})
    return JobSpec(job_id, queue, "send", payload, headers={"tenant": text, "authorization": "Bearer hunter2"})


def as_json(value: object) -> bytes:
    return msgspec.json.encode(value)


def _claimed(store: Store, worker: str, queue: str) -> c.Lease:
    (lease,) = store.claim(worker, [queue], 1)
    store.start([c.StartReport(lease.job.id, lease.token)])
    return lease


def _succeed(store: Store, worker: str, job_id: str, text: str) -> None:
    store.enqueue([spec(job_id, "mail", text)])
    lease = _claimed(store, worker, "mail")
    store.commit(job_id, lease.token, result=as_json({"said": text, "token": "hunter2"}))
    store.ack([c.AckReport(job_id, lease.token)])


def _fail(store: Store, worker: str, job_id: str, text: str) -> None:
    store.enqueue([spec(job_id, "mail", text)])
    lease = _claimed(store, worker, "mail")
    store.nack([c.NackReport(job_id, lease.token, f"ValueError: {text}\n  caused by {text}", is_permanent=True)])


def _retry(store: Store, worker: str, job_id: str, text: str) -> None:
    store.enqueue([spec(job_id, "mail", text)])
    lease = _claimed(store, worker, "mail")
    store.nack([c.NackReport(job_id, lease.token, f"KeyError: {text}", delay_us=3_600 * SECOND)])


def _zombie(store: Store, worker: str, job_id: str, text: str) -> None:
    """A worker that reports an end although its job was taken from it."""
    store.enqueue([spec(job_id, "zombies", text)])
    lease = _claimed(store, worker, "zombies")
    store.cancel([job_id], by="ann", reason=text)
    store.ack([c.AckReport(job_id, lease.token)])
    store.redrive(c.JobFilter(job_ids=(job_id,)), by="ann", reason=text, include_cancelled=True)


def _block(store: Store, worker: str, job_id: str, text: str) -> None:
    """A lane whose head failed for good, and a job behind it."""
    store.enqueue([JobSpec("head-1", "lanes", "send", lane=f"lane {text}"[:200], policy=BLOCKING)])
    store.enqueue([JobSpec(job_id, "lanes", "send", lane=f"lane {text}"[:200], policy=BLOCKING)])
    lease = _claimed(store, worker, "lanes")
    store.nack([c.NackReport("head-1", lease.token, f"OSError: {text}")])


def _publish(store: Store, worker: str, running: RunningJob) -> None:
    record = WorkerRecord(
        worker,
        "host",
        1,
        0.0,
        0.0,
        1.0,
        {"mail": 1, "leased": 1},
        4,
        False,
        [running],
        {"succeeded": 1.0, "refused": 2.0},
        instance="instance of a worker",
        takes_orders=True,
        order=WorkerOrder("instance of a worker", Order.QUIET, 1, f"ann {running.note}", f"order {running.note}"),
    )
    store.presence.publish(worker, encode_record(record))
