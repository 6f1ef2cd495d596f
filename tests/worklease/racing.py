"""Several orchestrators on one store by mistake, each with a store object of its own: a domain is still one domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from leasemill.api.worklease import AcquireStatus, WorkLease
from leasemill.errors import BacklogOrder, LeaseNotFound, TokenMismatch
from leasemill.store.base import Store

DOMAINS = ("A", "B")
OFFSETS = range(25)


def race(open_one: Callable[[], Store], callers: int) -> None:
    """Every caller wants every offset; whatever they do to each other, each is acquired and succeeded exactly once."""
    barrier = Barrier(callers)

    def call(number: int) -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
        won, done = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
        with open_one() as store:
            work = WorkLease(store, "offsets", worker=f"caller-{number}")
            barrier.wait()
            for domain in DOMAINS:
                for offset in OFFSETS:
                    while step(work, domain, offset, won, done) is not AcquireStatus.ALREADY_PROCESSED:
                        pass
        return won, done

    with ThreadPoolExecutor(callers) as pool:
        answers = list(pool.map(call, range(callers)))
    once = Counter((domain, offset) for domain in DOMAINS for offset in OFFSETS)
    assert sum((won for won, _ in answers), Counter()) == once, "acquired once"
    assert sum((done for _, done in answers), Counter()) == once, "succeeded once"
    with open_one() as store:
        for domain in DOMAINS:
            view = store.lane("offsets", domain)
            assert view is not None
            assert (view.head, view.finished, view.failed) == (None, ((OFFSETS[0], OFFSETS[-1]),), ())


def step(
    work: WorkLease, domain: str, offset: int, won: Counter[tuple[str, int]], done: Counter[tuple[str, int]]
) -> AcquireStatus | None:
    """Ask for an offset, and report it if it is there to be reported; None when another was quicker."""
    try:
        answer = work.try_acquire(domain, offset)
        if answer.status is AcquireStatus.ACQUIRED:
            won[domain, offset] += 1
        if answer.lease is not None:
            work.succeed(domain, answer.lease.token)
            done[domain, offset] += 1
    except (BacklogOrder, LeaseNotFound, TokenMismatch):
        return None
    return answer.status
