"""L7: the jobs of a holder that has gone silent are granted again to any claimant.

No reaper runs here, no worker, and no claim comes back empty: the queues always have jobs to give. A store that finds
expired leases only when somebody calls `expire`, or when it has nothing else to give, passes every other test of the
suite and keeps a crashed worker's jobs for ever on a busy queue.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from leasemill.kernel.commands import Ack, AckReport, Claim, Lease
from leasemill.kernel.model import SECOND, JobState, LimitTerms, LimitUse, Policy, Rules
from leasemill.testing.conformance.harness import Harness, StayingOpen
from leasemill.testing.conformance.steps import (
    LANE,
    OPERATOR,
    OTHER,
    QUEUE,
    WHY,
    acked,
    claim,
    claim_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    let_expire,
    new_token,
    state_of,
)
from leasemill.testing.rules import rule

BUSY_S: Final = 3
"""Claims that find jobs look for expired leases at least every two seconds, if they come every second."""
SIDE: Final = "elsewhere"
STRIPE: Final = "stripe"
UNDER_STRIPE: Final = Rules(limits=(LimitUse(STRIPE),))
SHORT_S: Final = 5
SHORT: Final = Policy(lease_ttl_us=SHORT_S * SECOND)
SEEDS: Final = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2, 3]

ClaimWay = Callable[[Harness, Sequence[str], int, Sequence[Lease]], list[Lease]]


def _claim_with(harness: Harness, queues: Sequence[str], limit: int) -> Claim:
    return Claim(OTHER, queues, limit, [new_token() for _ in range(limit)], new_token())


def _reports(leases: Sequence[Lease]) -> Ack:
    return Ack([AckReport(lease.job.id, lease.token) for lease in leases])


def in_a_thread(harness: Harness, queues: Sequence[str], limit: int, ending: Sequence[Lease]) -> list[Lease]:
    for lease in ending:
        acked(harness, lease)
    return claim(harness, limit, worker=OTHER, queues=queues)


def in_a_loop(harness: Harness, queues: Sequence[str], limit: int, ending: Sequence[Lease]) -> list[Lease]:
    for lease in ending:
        acked(harness, lease)
    return asyncio.run(harness.store.arun(_claim_with(harness, queues, limit)))


def with_the_ack(harness: Harness, queues: Sequence[str], limit: int, ending: Sequence[Lease]) -> list[Lease]:
    if not ending:
        return in_a_loop(harness, queues, limit, ending)
    both = harness.store.ack_and_claim(_reports(ending), _claim_with(harness, queues, limit))
    _, leases = asyncio.run(both)
    assert leases is not None
    return leases


WAYS: Final[dict[str, ClaimWay]] = {
    "in a thread": in_a_thread,
    "in an event loop": in_a_loop,
    "with the ack": with_the_ack,
}
every_way = pytest.mark.parametrize("way", WAYS)


def busy(harness: Harness, way: ClaimWay) -> list[str]:
    """A worker that claims a job every second and acks it with the next, until the lease of a silent one is over for
    so long that it must have been found. The queue never runs empty. Returns the jobs that it was granted."""
    granted: list[str] = []
    ending: list[Lease] = []
    for second in range(SHORT_S + BUSY_S):
        enqueue_one(harness, f"later-{second}")
        harness.clock.advance(s=1)
        ending = way(harness, [QUEUE], 1, ending)
        granted += [lease.job.id for lease in ending]
    assert len(granted) == SHORT_S + BUSY_S, "the queue was not to run empty"
    return granted


class Recovering:
    @rule("L7")
    @every_way
    def test_a_job_whose_holder_is_silent_is_granted_again_on_a_queue_that_never_runs_empty(
        self, harness: Harness, way: str
    ) -> None:
        """020: recovery depends on no particular process."""
        silent = enqueue_and_claim(harness, policy=SHORT)
        assert silent.job.id in busy(StayingOpen(harness), WAYS[way])

    @rule("L7", "T3")
    @every_way
    def test_so_is_one_under_a_limit_and_its_place_is_free_again(self, harness: Harness, way: str) -> None:
        harness.store.set_limit(STRIPE, LimitTerms(1), by=OPERATOR, reason=WHY)
        silent = enqueue_and_claim(harness, rules=UNDER_STRIPE, policy=SHORT)
        assert silent.job.id in busy(StayingOpen(harness), WAYS[way])

    @rule("L7")
    def test_a_claim_of_one_queue_records_what_expired_in_another(self, harness: Harness) -> None:
        silent = enqueue_and_claim(harness, queue=SIDE)
        kept = StayingOpen(harness)
        let_expire(kept, silent)
        enqueue_many(kept, *(f"other-{number}" for number in range(BUSY_S)))
        for _ in range(BUSY_S):
            kept.clock.advance(s=1)
            assert len(claim_ids(kept, 1)) == 1
        assert state_of(kept) is JobState.READY

    @rule("L7")
    @pytest.mark.parametrize("seed", SEEDS)
    def test_every_job_whose_holder_falls_silent_is_granted_again(self, harness: Harness, seed: int) -> None:
        """A liveness property. Some holders neither report nor extend, for ever, while others go on claiming and acking
        on queues that always have jobs. Every silenced job is granted again within its lease and a bound. It is there
        for stores that recover jobs only in idle moments, or only some of them: not those in lanes, under limits or in
        another queue. A history is decided by its seed, which a failure names; SEED=… runs that one alone."""
        history = SilentHolders(harness, seed)
        for _ in range(60):
            history.step()
        history.finish()


class SilentHolders:
    """A few claimants on two queues. A silent one stays silent: only time ends its leases."""

    BOUND_S: Final = BUSY_S + 5
    """The interval at which claims look, and those that come between: they may be of the other queue first, or take an
    older job."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self._harness = harness
        self._source = random.Random(seed)
        self._again = f"seed {seed}; again: SEED={seed}"
        self._number = 0
        self._held: list[Lease] = []
        self._silent: dict[str, int] = {}
        """Jobs of silent holders, and until when they are to be granted again."""
        self._silenced = 0
        harness.store.set_limit(STRIPE, LimitTerms(2), by=OPERATOR, reason=WHY)
        for queue in (QUEUE, SIDE):
            self._add(queue, 10)

    def step(self, *, may_fall_silent: bool = True) -> None:
        source, harness = self._source, self._harness
        harness.clock.advance(us=source.randrange(SECOND))
        ending = [lease for lease in self._held if source.random() < 0.7 or self._is_ending(lease)]
        self._held = [lease for lease in self._held if lease not in ending]
        queues = source.choice(([QUEUE, SIDE], [SIDE, QUEUE]))
        way = source.choice(list(WAYS))
        granted = WAYS[way](harness, queues, source.randint(1, 3), ending)
        assert granted, f"the queues were not to run empty: {self._again}"
        for lease in granted:
            self._silent.pop(lease.job.id, None)
            if may_fall_silent and source.random() < 0.2:
                self._silenced += 1
                self._silent[lease.job.id] = lease.expires_at + self.BOUND_S * SECOND
            else:
                self._held.append(lease)
            self._add(lease.job.queue, 1)
        late = [job_id for job_id, until in self._silent.items() if harness.clock.now() > until]
        assert not late, f"not granted again {self.BOUND_S} s after their leases expired: {late}; {self._again}"

    def finish(self) -> None:
        """Let no more claimants fall silent, until the last lease has expired."""
        assert self._silenced, self._again
        while self._silent:
            self.step(may_fall_silent=False)

    def _is_ending(self, lease: Lease) -> bool:
        return lease.expires_at - self._harness.clock.now() < 2 * SECOND

    def _add(self, queue: str, count: int) -> None:
        """Jobs that are plain, in a lane or under a limit."""
        for _ in range(count):
            self._number += 1
            lane, rules = self._source.choice(((None, None), (None, None), (LANE, None), (None, UNDER_STRIPE)))
            enqueue_one(self._harness, f"job-{self._number}", queue=queue, lane=lane, rules=rules, policy=SHORT)
