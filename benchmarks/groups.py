"""What a group costs on PostgreSQL: jobs a second with all jobs in one group, beside the same jobs without one.

    python -m benchmarks.groups [--jobs 100000] [--workers 4] [--batch 100] [URL]

Without a URL a temporary server is started. Each worker is a process that claims and acknowledges batches. The callback
must be enqueued once, when all have ended.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor

from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, JobState, Rules
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import PostgresServer

ENQUEUED_AT_ONCE = 1_000


def work(url: str, queue: str, batch: int) -> int:
    """Until nothing is left; returns how many jobs this worker ended."""
    count, idle = 0, 0
    with PostgresStore(url) as store:
        while idle < 3:
            leases = store.claim("bench", [queue], batch)
            if leases:
                store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
                count, idle = count + len(leases), 0
            else:
                idle += 1
                time.sleep(0.02)
    return count


def measure(url: str, queue: str, jobs: int, workers: int, batch: int, rules: Rules | None) -> tuple[float, float]:
    """Jobs a second, enqueued and ended."""
    with PostgresStore(url) as store:
        begun = time.perf_counter()
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            numbers = range(first, min(jobs, first + ENQUEUED_AT_ONCE))
            specs = [JobSpec(f"{queue}-{number}", queue, "k", rules=rules) for number in numbers]
            store.run(c.Enqueue(specs, are_new=True))
        enqueued_s = time.perf_counter() - begun
        if rules is not None and rules.group is not None:
            store.seal_group(rules.group)
    begun = time.perf_counter()
    with ProcessPoolExecutor(workers) as pool:
        ended = sum(one.result() for one in [pool.submit(work, url, queue, batch) for _ in range(workers)])
    ended_s = time.perf_counter() - begun
    if ended != jobs:
        raise SystemExit(f"{ended:,} of {jobs:,} jobs ended")
    return jobs / enqueued_s, jobs / ended_s


def run(url: str, jobs: int, workers: int, batch: int) -> None:
    print(f"{jobs:,} jobs, {workers} workers, batches of {batch}")
    with PostgresStore(url) as store:
        store.create_group("group", then=ChainedJob("callbacks", "then"), on_end=ChainedJob("callbacks", "end"))
    for name, rules in (("without a group", None), ("in one group", Rules(group="group"))):
        enqueued, ended = measure(url, name.split()[-1] + name[:2], jobs, workers, batch, rules)
        print(f"{name:>16}: {enqueued:9,.0f} enqueued/s {ended:9,.0f} ended/s")
    with PostgresStore(url) as store:
        group = store.group("group")
        waiting = next(queue.counts[JobState.READY] for queue in store.queues() if queue.name == "callbacks")
        if group is None or group.succeeded != jobs or waiting != 2:
            raise SystemExit(f"the group ended wrong: {group}, {waiting} callbacks")
    print("the callbacks were enqueued once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100)
    given = parser.parse_args()
    if given.url is not None:
        run(given.url, given.jobs, given.workers, given.batch)
        return
    with PostgresServer() as server:
        run(
            f"{server.url()}{'&' if '?' in server.url() else '?'}auto_migrate=true",
            given.jobs,
            given.workers,
            given.batch,
        )


if __name__ == "__main__":
    main()
