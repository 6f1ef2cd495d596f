"""The PostgreSQL store alone, without worker and handlers: what its statements cost.

    python -m benchmarks.postgres_store [JOBS] [ROUNDS]

One server with fsync on, one process, claim and ack in batches of 200 on two threads. Ratios are of one round, medians
over the rounds.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

import psycopg

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.system import SystemEntropy
from leasemill.testing.postgres import PostgresServer

BATCH = 200
ENQUEUE_BATCH = 1_000
PICKUPS = 100
ENTROPY = SystemEntropy()


def main() -> None:
    jobs, rounds = (int(one) for one in [*sys.argv[1:], *["60000", "3"][len(sys.argv) - 1 :]])
    with PostgresServer() as server:
        print(f"{server.version}; {jobs:,} jobs, batches of {BATCH}, fsync on, medians of {rounds}")
        runs = [measured(server.url(), jobs, number) for number in range(rounds)]
    for name in runs[0]:
        print(f"{name:<42} {statistics.median(run[name] for run in runs):>12,.2f}")


def measured(url: str, jobs: int, number: int) -> dict[str, float]:
    plain = drained(url, jobs, f"plain_{number}")
    held = drained(url, jobs, f"held_{number}", holds=True)
    lanes = drained(url, jobs, f"lanes_{number}", lanes=max(1, jobs // 10))
    one_lane = drained(url, jobs, f"blocked_{number}", blocked=jobs)
    future = drained(url, jobs, f"future_{number}", future=jobs)
    return {
        "bulk enqueue, jobs/s": plain["enqueue"],
        "bulk enqueue in lanes, jobs/s": lanes["enqueue"],
        "drain, jobs/s": plain["drain"],
        "log bytes per job, enqueue and drain": plain["wal"],
        "held snapshot, last fifth / without one": held["last"] / plain["last"],
        "10 jobs in each lane / without lanes": lanes["drain"] / plain["drain"],
        "as many blocked in one lane / without": one_lane["drain"] / plain["drain"],
        "as many in the future / without": future["drain"] / plain["drain"],
        "single enqueue, jobs/s": singly(url, f"single_{number}"),
        "idle pickup, ms": picked_up(url, f"idle_{number}"),
    }


def opened(url: str, schema: str) -> PostgresStore:
    return PostgresStore(f"{url}&schema={schema}&auto_migrate=1")


def drained(
    url: str,
    jobs: int,
    schema: str,
    *,
    holds: bool = False,
    lanes: int = 0,
    blocked: int = 0,
    future: int = 0,
) -> dict[str, float]:
    with opened(url, schema) as store, psycopg.connect(parse_url(url)[0]) as other:
        if blocked:
            enqueue(store, [JobSpec("head", "held", "kind", lane="one")])
            store.claim("holder", ["held"], 1)
            store.enqueue([JobSpec("work-head", "work", "kind", lane="one", delay_us=3_600_000_000)])
            enqueue(store, [JobSpec(ENTROPY.new_id(), "work", "kind", lane="one") for _ in range(blocked)])
        if future:
            enqueue(store, [JobSpec(ENTROPY.new_id(), "work", "kind", delay_us=3_600_000_000) for _ in range(future)])
        other.autocommit = True
        other.execute("checkpoint")
        before = wal(other)
        begun = time.perf_counter()
        lane = (lambda number: f"lane-{number % lanes}") if lanes else (lambda _: None)
        payload = b'{"account":"a1","cents":500}'
        enqueue(
            store, [JobSpec(ENTROPY.new_id(), "work", "kind", payload, lane=lane(number)) for number in range(jobs)]
        )
        enqueued_s = time.perf_counter() - begun
        other.autocommit = False
        if holds:
            other.execute("set transaction isolation level repeatable read")
            other.execute("select 1")
        times = drain(store, jobs)
        other.rollback()
        other.autocommit = True
        written = wal(other) - before
        other.execute(f"drop schema {schema} cascade".encode())
    fifth = max(1, len(times) // 5)
    return {
        "enqueue": jobs / enqueued_s,
        "drain": jobs / times[-1],
        "last": 1 / (times[-1] - times[-1 - fifth]),
        "wal": written / jobs,
    }


def enqueue(store: PostgresStore, jobs: list[JobSpec]) -> None:
    for first in range(0, len(jobs), ENQUEUE_BATCH):
        store.enqueue(jobs[first : first + ENQUEUE_BATCH])


def drain(store: PostgresStore, jobs: int) -> list[float]:
    """When each batch was acknowledged, from the beginning."""
    claimed: SimpleQueue[list[c.Lease]] = SimpleQueue()
    times: list[float] = []
    begun = time.perf_counter()

    def ack() -> None:
        acked = 0
        while acked < jobs:
            leases = claimed.get()
            outcomes = store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
            acked += sum(isinstance(outcome, c.Acked) for outcome in outcomes)
            times.append(time.perf_counter() - begun)

    thread = threading.Thread(target=ack)
    thread.start()
    got = 0
    while got < jobs:
        leases = store.claim("worker", ["work"], BATCH)
        got += len(leases)
        if leases:
            claimed.put(leases)
        else:
            time.sleep(0.001)
    thread.join()
    return times


def singly(url: str, schema: str) -> float:
    with opened(url, schema) as store:
        begun = time.perf_counter()
        for _ in range(1_000):
            store.enqueue([JobSpec(ENTROPY.new_id(), "work", "kind")])
        return 1_000 / (time.perf_counter() - begun)


def picked_up(url: str, schema: str) -> float:
    """From before the enqueue until another store, asleep on its watch, holds the lease; the median."""
    found: SimpleQueue[float] = SimpleQueue()
    with opened(url, schema) as producer, opened(url, schema) as consumer:

        def consume() -> None:
            watch = consumer.watch(["work"])
            for _ in range(PICKUPS):
                while not (leases := consumer.claim("worker", ["work"], 1)):
                    watch.wait(5)
                found.put(time.perf_counter())
                consumer.ack([c.AckReport(leases[0].job.id, leases[0].token)])
            watch.close()

        thread = threading.Thread(target=consume)
        thread.start()
        time.sleep(0.5)
        waits: list[float] = []
        for _ in range(PICKUPS):
            begun = time.perf_counter()
            producer.enqueue([JobSpec(ENTROPY.new_id(), "work", "kind")])
            waits.append(found.get() - begun)
            time.sleep(0.05)
        thread.join()
    return statistics.median(waits) * 1_000


def wal(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
