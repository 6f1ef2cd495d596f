"""How fast is the kernel, and does it stay so when much is waiting?

Full cycles (enqueue, claim, start, ack in batches of 100) beside the barest loop over a dict and two deques that does
the same bookkeeping without any check; the cost of claim, ack and expire with 1,000,000 jobs READY against 10,000, with
and without lanes; the same under a queue's limit and under limits by key; memory for each READY job.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from benchmarks.report import Bar, finish, medians, table
from leasemill.kernel import commands as c
from leasemill.kernel.machine import run
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.kernel.state import State

PAYLOAD = b'{"text":"' + b"x" * 89 + b'"}'
BATCH = 100
NOW = 1_700_000_000 * SECOND


def kernel_cycles(jobs: int = 20_000) -> float:
    state, now = State(), NOW
    specs = [JobSpec(f"job-{index:012}", "queue", "kind", PAYLOAD) for index in range(jobs)]
    tokens = [f"{index:032x}" for index in range(jobs)]
    began = time.perf_counter()
    for first in range(0, jobs, BATCH):
        run(state, c.Enqueue(specs[first : first + BATCH]), now)
        _, leases = run(state, c.Claim("worker", ("queue",), BATCH, tokens[first : first + BATCH], f"r{first}"), now)
        run(state, c.Start([c.StartReport(lease.job.id, lease.token) for lease in leases]), now)
        run(state, c.Ack([c.AckReport(lease.job.id, lease.token) for lease in leases]), now)
        now += 1_000
    return jobs / (time.perf_counter() - began)


def bare_cycles(jobs: int = 200_000) -> float:
    known: dict[str, list[object]] = {}
    ready: deque[str] = deque()
    leases: deque[tuple[int, str]] = deque()
    ids = [f"job-{index:012}" for index in range(jobs)]
    tokens = [f"{index:032x}" for index in range(jobs)]
    now = NOW
    began = time.perf_counter()
    for first in range(0, jobs, BATCH):
        for job_id in ids[first : first + BATCH]:
            known[job_id] = ["ready", PAYLOAD, now, None, None, None, None]
            ready.append(job_id)
        claimed = []
        for token in tokens[first : first + BATCH]:
            job_id = ready.popleft()
            job = known[job_id]
            job[0], job[3], job[4] = "leased", token, now
            leases.append((now + 30 * SECOND, job_id))
            claimed.append((job_id, token))
        for job_id, _token in claimed:
            job = known[job_id]
            job[0], job[5] = "started", now
        for job_id, _token in claimed:
            job = known[job_id]
            job[0], job[6] = "succeeded", now
            leases.popleft()
        now += 1_000
    return jobs / (time.perf_counter() - began)


class Costs(NamedTuple):
    """Microseconds for each job."""

    claim: float
    ack: float
    expire: float


def filled(jobs: int, lanes: int) -> State:
    state = State()
    for first in range(0, jobs, 1_000):
        specs = [
            JobSpec(f"job-{index:012}", "queue", "kind", PAYLOAD, lane=f"lane-{index % lanes}" if lanes else None)
            for index in range(first, first + 1_000)
        ]
        run(state, c.Enqueue(specs), NOW + first)
    return state


class Bench:
    """Claims, acks and expires in batches, from whatever else is waiting in a state."""

    def __init__(self, jobs: int, lanes: int) -> None:
        self._state = filled(jobs, lanes)
        self._now = NOW + 3_600 * SECOND
        self._drawn = 0

    def costs(self, jobs: int = 1_000) -> Costs:
        claims, acks, expires = [], [], []
        for _ in range(0, jobs, BATCH):
            self._drawn += BATCH
            tokens = [f"{self._drawn + index:032x}" for index in range(BATCH)]
            request = c.Claim("worker", ("queue",), BATCH, tokens, f"r{self._drawn}")
            began = time.perf_counter()
            _, leases = run(self._state, request, self._now)
            claimed = time.perf_counter()
            run(
                self._state,
                c.Ack([c.AckReport(lease.job.id, lease.token) for lease in leases[: BATCH // 2]]),
                self._now,
            )
            acked = time.perf_counter()
            self._now += 31 * SECOND
            run(self._state, c.Expire(BATCH), self._now)
            expires.append((time.perf_counter() - acked) / (BATCH // 2))
            acks.append((acked - claimed) / (BATCH // 2))
            claims.append((claimed - began) / BATCH)
        return Costs(*(median(values) * 1e6 for values in (claims, acks, expires)))


def compared(lanes_of: Callable[[int], int]) -> tuple[Costs, Costs]:
    """What it costs with 10,000 and with 1,000,000 READY jobs: measured in turn, so that noise meets both."""
    few, many = (Bench(jobs, lanes_of(jobs)) for jobs in (10_000, 1_000_000))
    rounds = [(few.costs(), many.costs()) for _ in range(9)]
    small, large = (
        Costs(*(median(values) for values in zip(*(pair[side] for pair in rounds), strict=True))) for side in (0, 1)
    )
    return small, large


def limited_costs(jobs: int, keys: int) -> tuple[float, float]:
    """Microseconds to claim and to ack a job while others wait: under a queue's limit of 50, or `keys` of limit 2."""
    state, tokens = State(), iter(range(10**9))
    if keys:
        run(state, c.SetLimit("each", LimitTerms(2), "benchmark", "measured"), NOW)
    else:
        run(state, c.SetLimit("queue:queue", LimitTerms(50), "benchmark", "measured"), NOW)
    for first in range(0, jobs, 1_000):
        specs = [
            JobSpec(
                f"job-{index:012}",
                "queue",
                "kind",
                PAYLOAD,
                rules=Rules(limits=(LimitUse("each", f"key-{index % keys}"),)) if keys else None,
            )
            for index in range(first, first + 1_000)
        ]
        run(state, c.Enqueue(specs), NOW + first)
    now = NOW + 3_600 * SECOND
    held: deque[c.Lease] = deque()
    while len(held) < (2 * keys or 50):
        held += run(state, c.Claim("worker", ("queue",), 50, [f"{next(tokens):032x}" for _ in range(50)]), now)[1]
    claims, acks = [], []
    for _ in range(200):
        ended = [held.popleft() for _ in range(25)]
        began = time.perf_counter()
        run(state, c.Ack([c.AckReport(lease.job.id, lease.token) for lease in ended]), now)
        acked = time.perf_counter()
        held += run(state, c.Claim("worker", ("queue",), 25, [f"{next(tokens):032x}" for _ in range(25)]), now)[1]
        claims.append((time.perf_counter() - acked) / 25)
        acks.append((acked - began) / 25)
    return median(claims) * 1e6, median(acks) * 1e6


def bytes_per_ready_job(jobs: int = 100_000) -> float:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = State()
    for first in range(0, jobs, 1_000):
        # ids and payloads of their own, as they come from a log
        specs = [
            JobSpec(f"job-{index:032}", "queue", "kind", bytes(bytearray(PAYLOAD)))
            for index in range(first, first + 1_000)
        ]
        run(state, c.Enqueue(specs), NOW + first)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken / len(state.jobs)


def main() -> None:
    bare, kernel = medians(bare_cycles, 5), medians(kernel_cycles, 5)
    table(
        "full cycles: enqueue, claim, start, ack in batches of 100",
        ("", "cycles/s", "of bare"),
        [
            ("a dict and two deques, no check", f"{bare:,.0f}", "1"),
            ("the kernel", f"{kernel:,.0f}", f"1/{bare / kernel:.1f}"),
        ],
    )
    measured = {"without lanes": compared(lambda _: 0), "with 100,000 lanes": compared(lambda jobs: jobs // 10)}
    table(
        "microseconds for each job, batches of 100",
        ("", "READY jobs", "claim", "ack", "expire"),
        [
            (lanes, jobs, *(f"{cost:.2f}" for cost in found))
            for lanes, pair in measured.items()
            for jobs, found in zip(("10,000", "1,000,000"), pair, strict=True)
        ],
    )
    limited = {
        "a queue's limit of 50": [limited_costs(jobs, 0) for jobs in (10_000, 200_000)],
        "1,000 and 10,000 keys of limit 2": [limited_costs(10_000, 1_000), limited_costs(200_000, 10_000)],
    }
    table(
        "microseconds for each job under limits, batches of 25, all places held",
        ("", "READY jobs", "claim", "ack"),
        [
            (name, jobs, *(f"{cost:.2f}" for cost in costs))
            for name, pair in limited.items()
            for jobs, costs in zip(("10,000", "200,000"), pair, strict=True)
        ],
    )
    memory = bytes_per_ready_job()
    table("memory", ("", "bytes"), [("a READY job with a 100-byte payload", f"{memory:,.0f}")])
    bars = [Bar("cycles/s against the bare loop's, times 40", 40 * kernel / bare, 1.0)]
    for lanes, (few, many) in measured.items():
        bars += [
            Bar(f"{verb} {lanes}: 1,000,000 READY against 10,000", large / small, 2.0, at_least=False)
            for verb, small, large in zip(Costs._fields, few, many, strict=True)
        ]
    bars += [
        Bar(f"claim under {name}: 200,000 READY against 10,000", many[0] / few[0], 3.0, at_least=False)
        for name, (few, many) in limited.items()
    ]
    bars.append(Bar("bytes for each READY job", memory, 1_500, at_least=False))
    finish(bars)


if __name__ == "__main__":
    main()
