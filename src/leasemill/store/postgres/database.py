"""What the verbs of one store share: its statements, its time, what it knows of queues, and how far claims got."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import psycopg
from msgspec import Struct
from psycopg.rows import tuple_row

from leasemill.kernel.model import SECOND, JobSpec
from leasemill.kernel.state import DEATHS_FORMAT, KEYS_FORMAT, PLAIN_FORMAT
from leasemill.store.expiries import Expiries
from leasemill.store.postgres.positions import ExpiryPosition, Positions
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection, Row
from leasemill.store.postgres.wire.cursors import PlainCursor
from leasemill.store.postgres.wire.statements import Statement, Statements
from leasemill.store.sources import Clock

RUN_CANCELLED: Final = "!cancelled"
"""What the channel of new jobs carries when a running job was cancelled: no queue has such a name."""
LEASES_REMEMBERED: Final = 100_000
SPECIAL_CLAIMS: Final = 10
"""After a claim under limits that was not plain, this many claims are not tried as plain ones."""


KNOWN_SINCE: Final = {DEATHS_FORMAT: 15, KEYS_FORMAT: 24}
"""Of formats (W16) that bring what rows may hold: the first version of the tables that knows it. For rules there is
`use_rules`; no row of a job names an order."""


class Held(Struct, frozen=True, gc=False):
    """What a claim found out about a job it granted a lease on: all of it stays as it is."""

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
    """Whether a process that does not know the job's rules must not be given it."""
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


class Database:
    """One store's side of the conversation."""

    def __init__(self, statements: Statements, clock: Clock | None, expiries: Expiries) -> None:
        self.statements = statements
        self.expiries = expiries
        self.clock = clock
        self.positions = Positions()
        self.expiry_position = ExpiryPosition() if clock is None else ExpiryPosition(lambda: clock.now() / SECOND)
        self.claim_queues: set[str] = set()
        """Queues known to be used with enqueue and claim."""
        self.ruled_queues: set[str] = set()
        """Those of them whose jobs are known to have limits, groups or chains."""
        self.limited_queues: set[str] = set()
        """Queues known to be claimed under limits."""
        self.limits_named: set[tuple[str, str]] = set()
        """Queues with the names of limits that are known to be on record for them."""
        self._limit_names: dict[tuple[str, ...], list[str]] = {}
        self._special_claims: dict[tuple[str, ...], int] = {}
        self.format = PLAIN_FORMAT
        """The latest that is known to be on record."""
        self.has_rules = False
        """Whether it is on record that rules are in use."""
        self.has_arrived = False
        """Whether the last claim saw jobs that wait for their admission."""
        self.leases: dict[str, Held] = {}
        self.has_caused_arrivals = False
        """Whether jobs that ends have caused wait for their admission."""
        self.has_moved_jobs = False
        """Whether a decision may have made jobs claimable, and nobody was notified of it yet."""
        self.insert_caused: Callable[[Sequence[JobSpec]], Generator[Any, Any, Sequence[Any]]] = _no_insert
        """The steps that insert jobs which ends have caused, as any enqueue does: set by the store."""
        self.channel = f"leasemill_{statements.schema}"
        self.admission_key = advisory_key(f"leasemill admission {statements.schema}")
        self.retention_key = advisory_key(f"leasemill retention {statements.schema}")

    def remember(self, leases: Iterable[tuple[str, Held]]) -> None:
        """Leases granted here by their tokens: reports on them take the fast path."""
        if len(self.leases) > LEASES_REMEMBERED:
            self.leases = {}
        self.leases.update(leases)

    def knows_uses(self, jobs: Iterable[JobSpec]) -> bool:
        """Whether enqueueing these jobs changes nothing of how their queues are used."""
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

    def claimed_specially(self, queues: Iterable[str]) -> None:
        """A claim of these queues was not plain: jobs wait for places, or there are rates."""
        self._special_claims[tuple(dict.fromkeys(queues))] = SPECIAL_CLAIMS

    def may_be_plain(self, queues: Iterable[str]) -> bool:
        """Whether to try the next claim of these queues as if it were."""
        left = self._special_claims.get(key := tuple(dict.fromkeys(queues)), 0)
        if left:
            self._special_claims[key] = left - 1
        return not left

    def now(self) -> int | None:
        return None if self.clock is None else self.clock.now()

    def all(self, connection: psycopg.Connection[Any], name: str, given: Mapping[str, Any]) -> list[Row]:
        with PlainCursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(*self.sent(name, given), binary=True)
            return cursor.fetchall()

    def do(self, connection: Connection, name: str, given: Mapping[str, Any]) -> None:
        with PlainCursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(*self.sent(name, given), binary=True)

    def one(self, connection: Connection, name: str, given: Mapping[str, Any]) -> Row:
        (row,) = self.all(connection, name, given)
        return row

    def sent(self, name: str, given: Mapping[str, Any]) -> tuple[bytes, list[Any]]:
        """A statement and its parameters."""
        statement, complete = self.statement(name, given)
        return statement.text, statement.values(complete)

    def statement(self, name: str, given: Mapping[str, Any]) -> tuple[Statement, dict[str, Any]]:
        """A statement, and its parameters by name."""
        complete = {"now": None if self.clock is None else int8(self.clock.now()), **given}
        return self.statements[name], complete


def _no_insert(jobs: Sequence[JobSpec]) -> Generator[Any, Any, Sequence[Any]]:
    raise AssertionError(f"nobody inserts {len(jobs)} jobs that were caused")


def advisory_key(text: str) -> int:
    """A lock's number from its name: the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
