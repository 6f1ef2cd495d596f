"""The knowledge of a process about a store: how queues are used, how far claims got, and its own leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.state import DEATHS_FORMAT, KEYS_FORMAT, PLAIN_FORMAT
from leasemill.store.notifications import Expiries
from leasemill.store.postgres.positions import ExpiryPosition, Positions
from leasemill.store.system import Clock

RUN_CANCELLED: Final = "!cancelled"
"""The payload on the channel of new jobs when a running job was cancelled: no queue has such a name."""
LEASES_REMEMBERED: Final = 100_000


KNOWN_SINCE: Final = {DEATHS_FORMAT: 15, KEYS_FORMAT: 24}
"""Of formats (W16) that bring what rows may hold: the first version of the tables that knows it. For rules there is
`use_rules`; no row of a job names an order."""


class LeaseInfo(Struct, frozen=True, gc=False):
    """The facts that a claim found out about a job it granted a lease on: all of them stay as they are."""

    job_id: str
    no: int
    queue: str
    lane: str | None
    causes: bool = False
    """Its end enqueues another job, or may: decided by the kernel."""
    group: str | None = None
    """The group in which its end is counted, if that is all it does."""
    limits: tuple[str, ...] = ()
    """The names of the limits of which it holds a place."""
    has_key: bool = False
    """Its end may free a unique key."""


def needs_ruled_queue(job: JobSpec) -> bool:
    """True if a process that does not know the job's rules must not be given it."""
    rules = job.rules
    return rules is not None and bool(rules.limits or rules.group is not None or rules.chain)


def queue_uses(job: JobSpec) -> Iterator[tuple[str, bool]]:
    """The queues that a job and those that follow it are for, and whether those must know rules."""
    yield job.queue, needs_ruled_queue(job)
    if job.rules is not None and job.rules.chain:
        last = len(job.rules.chain) - 1
        for index, chained in enumerate(job.rules.chain):
            yield chained.queue, bool(chained.limits) or job.rules.group is not None or index < last


def ruled(jobs: Iterable[JobSpec]) -> set[str]:
    return {queue for job in jobs for queue, is_ruled in queue_uses(job) if is_ruled}


def used(jobs: Iterable[JobSpec]) -> set[str]:
    return {queue for job in jobs for queue, _ in queue_uses(job)}


def limits_named(jobs: Iterable[JobSpec]) -> set[tuple[str, str]]:
    """Queues with the names of limits that these jobs, and those that follow them, are under."""
    named: set[tuple[str, str]] = set()
    for job in jobs:
        if job.rules is not None:
            named.update((job.queue, limit.name) for limit in job.rules.limits)
            named.update((one.queue, limit.name) for one in job.rules.chain for limit in one.limits)
    return named


class Known:
    """Keeps what the verbs of one process have learnt of a store, so that the plain case needs no question.

    Everything here may be out of date, and nothing here is believed where it matters: a statement checks what it
    is given, or the exact path decides. It is learnt after the COMMIT of what taught it, never before.
    """

    def __init__(self, schema: str, clock: Clock | None, expiries: Expiries) -> None:
        self.schema = schema
        self.clock = clock
        self.expiries = expiries
        self.positions = Positions()
        self.expiry_position = ExpiryPosition() if clock is None else ExpiryPosition(lambda: clock.now() / SECOND)
        self.claim_queues: set[str] = set()
        """Queues known to be used with enqueue and claim."""
        self.ruled_queues: set[str] = set()
        """The queues whose jobs are known to have limits, groups or chains."""
        self.limited_queues: set[str] = set()
        """Queues known to be claimed under limits."""
        self.limits_named: set[tuple[str, str]] = set()
        """Queues with the names of limits that are known to be on record for them."""
        self._limit_names: dict[tuple[str, ...], list[str]] = {}
        self.format = PLAIN_FORMAT
        """The latest that is known to be on record."""
        self.has_rules = False
        """True if it is on record that rules are in use."""
        self.has_arrived = False
        """True if the last claim saw jobs that wait for their admission."""
        self.leases: dict[str, LeaseInfo] = {}
        """By their tokens, the leases that were granted here: reports on them take the fast path."""
        self.has_caused_arrivals = False
        """True if jobs that ends have caused wait for their admission."""
        self.has_moved_jobs = False
        """True if a decision may have made jobs claimable, and no caller was notified of it yet."""
        self.channel = f"leasemill_{schema}"
        self.admission_key = advisory_key(f"leasemill admission {schema}")
        self.retention_key = advisory_key(f"leasemill retention {schema}")

    def remember(self, leases: Iterable[tuple[str, LeaseInfo]]) -> None:
        if len(self.leases) > LEASES_REMEMBERED:
            self.leases = {}
        self.leases.update(leases)

    def knows_uses(self, jobs: Iterable[JobSpec]) -> bool:
        """Return True if enqueueing these jobs changes nothing of how their queues are used."""
        for job in jobs:
            if job.queue not in self.claim_queues:
                return False
            if job.rules is not None and not (
                self.has_rules
                and self.claim_queues >= used([job])
                and self.ruled_queues >= ruled([job])
                and self.limits_named >= limits_named([job])
            ):
                return False
        return True

    def learn_uses(self, jobs: Iterable[JobSpec]) -> None:
        """These jobs were enqueued, and it is committed."""
        for job in jobs:
            self.claim_queues.add(job.queue)
            if job.rules is not None:
                self.has_rules = True
                self.claim_queues |= used([job])
                self.ruled_queues |= ruled([job])
                named = limits_named([job])
                self.limits_named |= named
                self.limited_queues.update(queue for queue, _ in named)

    def limit_names(self, queues: Sequence[str]) -> list[str]:
        """The names of limits that a claim of these queues locks, as far as is known."""
        return self._limit_names.get(tuple(queues), [])

    def learn_limit_names(self, queues: Sequence[str], names: Iterable[str]) -> None:
        self._limit_names[tuple(queues)] = sorted(names)


def advisory_key(text: str) -> int:
    """A lock's number from its name: the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
