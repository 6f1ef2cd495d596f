"""What limits cost on PostgreSQL: draining with them beside draining without.

    python -m benchmarks.postgres_limits [JOBS] [ROUNDS]

One server with fsync on, one process, two threads that claim 25 jobs and ack them, so that 50 are held at most.
Cases take turns; ratios are of one round, medians over the rounds. Fails if a bar is not met.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.postgres import PostgresServer

BATCH: Final = 25
THREADS: Final = 2
ENQUEUE_BATCH: Final = 1_000
KEYS: Final = 10_000
PLAIN: Final = "without limits"
Make = Callable[[int], Rules | None]
CASES: Final[dict[str, tuple[Make, dict[str, LimitTerms]]]] = {
    PLAIN: (lambda _: None, {}),
    "a queue's limit of 50": (lambda _: None, {"queue:work": LimitTerms(places=50)}),
    "a shared limit of 50": (lambda _: _under(LimitUse("shared")), {"shared": LimitTerms(places=50)}),
    "10,000 keys of 2 places": (
        lambda number: _under(LimitUse("customer", f"c{number % KEYS}")),
        {"customer": LimitTerms(places=2)},
    ),
    "one key of 10 in front of others": (
        lambda number: _under(LimitUse("customer", "hot" if number % 2 else f"c{number % KEYS}")),
        {"customer": LimitTerms(places=10)},
    ),
    "a shared limit and 10,000 keys": (
        lambda number: _under(LimitUse("shared"), LimitUse("customer", f"c{number % KEYS}")),
        {"shared": LimitTerms(places=50), "customer": LimitTerms(places=2)},
    ),
    "a rate that is never reached": (
        lambda _: _under(LimitUse("api")),
        {"api": LimitTerms(rate=1_000_000, per_us=SECOND, burst=1_000_000)},
    ),
}
BARS: Final = {"a queue's limit of 50": 0.3, "10,000 keys of 2 places": 0.25}


def _under(*uses: LimitUse) -> Rules:
    return Rules(limits=uses)


def main() -> None:
    jobs, rounds = (int(one) for one in [*sys.argv[1:], *["20000", "3"][len(sys.argv) - 1 :]])
    rates: dict[str, list[float]] = {case: [] for case in CASES}
    with PostgresServer() as server:
        print(f"{server.version}; {jobs:,} jobs, {THREADS} x {BATCH}, fsync on, medians of {rounds}")
        for number in range(rounds):
            for place, (case, (make, terms)) in enumerate(CASES.items()):
                rates[case].append(drained(server.url(), f"limits_{number}_{place}", jobs, make, terms))
    failed: list[str] = []
    for case, found in rates.items():
        ratio = statistics.median(one / plain for one, plain in zip(found, rates[PLAIN], strict=True))
        bar = BARS.get(case)
        print(f"{case:<36} {statistics.median(found):>10,.0f} jobs/s {ratio:>8.2f}" + (f"  >= {bar}" if bar else ""))
        if bar is not None and ratio < bar:
            failed.append(case)
    if failed:
        sys.exit(f"below the bar: {', '.join(failed)}")


def drained(url: str, schema: str, jobs: int, make: Make, terms: dict[str, LimitTerms]) -> float:
    """Jobs per second, from the first claim until every job has ended."""
    with PostgresStore(f"{url}&schema={schema}&auto_migrate=1") as store:
        for name, one in terms.items():
            store.set_limit(name, one, by="benchmark", reason="to measure")
        specs = [JobSpec(f"j{number}", "work", "kind", rules=make(number)) for number in range(jobs)]
        for first in range(0, jobs, ENQUEUE_BATCH):
            store.run(c.Enqueue(specs[first : first + ENQUEUE_BATCH], are_new=True))
        left = [jobs]
        lock = threading.Lock()

        def work(name: str) -> None:
            while left[0] > 0:
                leases = store.claim(name, ["work"], BATCH)
                if leases:
                    store.run(c.Ack([c.AckReport(lease.job.id, lease.token) for lease in leases]))
                    with lock:
                        left[0] -= len(leases)

        threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(THREADS)]
        began_s = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return jobs / (time.perf_counter() - began_s)


if __name__ == "__main__":
    main()
