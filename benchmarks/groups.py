"""What a group costs: jobs a second with all jobs in one group, beside the same jobs without one.

    python -m benchmarks.groups [--jobs 100000] [--workers 4] [--batch 100] [URL]

Without a URL a temporary PostgreSQL server is started. Each worker is a process that claims and acknowledges batches.
The callback must be enqueued once, when all have ended. `make bench-rules` has a row of it on both stores.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from benchmarks.children import SPAWN, new_url
from leasemill import open_store
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, JobState, Rules

ENQUEUED_AT_ONCE = 1_000
GROUP = "group"
CALLBACKS = "callbacks"


class Compared(NamedTuple):
    """Jobs a second without a group and in one, enqueued and ended; how many callbacks there were at the end."""

    plain: tuple[float, float]
    grouped: tuple[float, float]
    callbacks: int


def work(url: str, queue: str, batch: int) -> int:
    """Until nothing is left; returns how many jobs this worker ended."""
    count, idle = 0, 0
    with open_store(url) as store:
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
    with open_store(url) as store:
        begun = time.perf_counter()
        for first in range(0, jobs, ENQUEUED_AT_ONCE):
            numbers = range(first, min(jobs, first + ENQUEUED_AT_ONCE))
            specs = [JobSpec(f"{queue}-{number}", queue, "k", rules=rules) for number in numbers]
            store.run(c.Enqueue(specs, are_new=True))
        enqueued_s = time.perf_counter() - begun
        if rules is not None:
            store.seal_group(GROUP)
    with ProcessPoolExecutor(workers, SPAWN) as pool:
        list(pool.map(time.sleep, [0.2] * workers))  # so that their start is not measured
        begun = time.perf_counter()
        ended = sum(one.result() for one in [pool.submit(work, url, queue, batch) for _ in range(workers)])
        ended_s = time.perf_counter() - begun
    if ended != jobs:
        raise SystemExit(f"{ended:,} of {jobs:,} jobs ended")
    return jobs / enqueued_s, jobs / ended_s


def compare(urls: tuple[str, str], jobs: int, workers: int, batch: int) -> Compared:
    """Each on a store of its own, so that neither works beside the other's ended jobs."""
    plain = measure(urls[0], "plain", jobs, workers, batch, None)
    with open_store(urls[1]) as store:
        store.create_group(GROUP, on_end=ChainedJob(CALLBACKS, "end"))
    grouped = measure(urls[1], "grouped", jobs, workers, batch, Rules(group=GROUP))
    with open_store(urls[1]) as store:
        group = store.group(GROUP)
        if group is None or group.succeeded != jobs:
            raise SystemExit(f"the group ended wrong: {group}")
        counts = [queue.counts[JobState.READY] for queue in store.queues() if queue.name == CALLBACKS]
    return Compared(plain, grouped, sum(counts))


def run(urls: tuple[str, str], jobs: int, workers: int, batch: int) -> None:
    print(f"{jobs:,} jobs, {workers} workers, batches of {batch}")
    found = compare(urls, jobs, workers, batch)
    for name, (enqueued, ended) in (("without a group", found.plain), ("in one group", found.grouped)):
        print(f"{name:>16}: {enqueued:9,.0f} enqueued/s {ended:9,.0f} ended/s")
    if found.callbacks != 1:
        raise SystemExit(f"there are {found.callbacks} callbacks")
    print("the callback was enqueued once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", help="an empty store; it keeps the jobs")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=100)
    given = parser.parse_args()
    if given.url is not None:
        run((given.url, given.url), given.jobs, given.workers, given.batch)
        return
    with new_url("postgres") as url:
        run((url(), url()), given.jobs, given.workers, given.batch)


if __name__ == "__main__":
    main()
