"""claim: leases on the first claimable jobs, in one statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from leasemill.errors import QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.model import EXECUTIONS_KEPT, QUEUE_LIMIT, TIMEOUT_LEASES, JobSpec
from leasemill.kernel.transitions.retry import DEFAULTS, NO_POLICY
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, Held, advisory_key
from leasemill.store.postgres.exact.tables import QueueUse
from leasemill.store.postgres.exact.values import (
    NOT_WRITTEN,
    headers_of,
    policy_of,
    policy_text,
    rules_of,
    terms_numbers,
    terms_of,
)
from leasemill.store.postgres.limits.claim import Limited
from leasemill.store.postgres.limits.plain import plain_claim
from leasemill.store.postgres.positions import Look
from leasemill.store.postgres.verbs.enqueue import modes
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection, Row
from leasemill.store.postgres.wire.looped import LoopMessages, MessageFailed

DEFAULT_TERMS: Final = int8s(terms_numbers(DEFAULTS))
"""I5: for what nobody asked for."""
UNWRITTEN_TERMS: Final = int8s(terms_numbers(NOT_WRITTEN))


async def arun(calls: Calls, messages: LoopMessages, command: c.Claim) -> list[c.Lease] | Callable[[], list[c.Lease]]:
    """Sent by the event loop itself, if it is plain. What it returns otherwise is to be called in a thread."""
    database, queues = calls.database, command.queues
    is_plain = database.claim_queues.issuperset(queues) and database.limited_queues.isdisjoint(queues)
    is_look_due = database.expiry_position.is_look_due
    if not is_plain or database.has_arrived or is_look_due or command.request_id is None:
        return partial(run, calls, command)
    plain = LookedClaim(database, command, database.positions.look(queues), database.expiry_position.from_at())
    match await messages.ask([database.sent("claim", plain.parameters(parameters(command)))]):
        case None:
            return partial(run, calls, command)
        case MessageFailed() as failed:
            return partial(run, calls, command, is_repeat=failed.is_lost)
        case (rows,):
            claimed = plain.claimed(rows)
        case answers:
            raise AssertionError(f"{len(answers)} answers to one statement")
    leases = claimed.leases
    if not leases:
        return partial(run, calls, command)
    database.has_arrived = claimed.has_arrived
    return partial(trimmed, calls, leases) if must_trim(leases) else leases


def run(calls: Calls, command: c.Claim, *, is_repeat: bool = False) -> list[c.Lease]:
    """What is granted is returned at once. Expired leases are looked for before that, if it is time (L7); otherwise
    only a claim that is granted nothing looks for more to give. `is_repeat`: it was sent before, and may be at work."""
    database, maintenance = calls.database, calls.maintenance
    if not database.claim_queues.issuperset(command.queues):
        calls.read(check_claim_queues, command.queues)
    if database.expiry_position.is_look_due:
        maintenance.look()
    if database.has_arrived:  # the claim before this one saw them
        maintenance.admit()
    claimed = _run(calls, command, is_repeat=is_repeat)
    while claimed.is_unfinished and not claimed.leases:
        claimed = _run(calls, command)
    if not claimed.leases and maintenance.found_more(claimed.expired_from, claimed.has_arrived):
        claimed = _run(calls, command)
    database.has_arrived = claimed.has_arrived
    return trimmed(calls, claimed.leases)


def trimmed(calls: Calls, leases: list[c.Lease]) -> list[c.Lease]:
    """I8: of jobs that were claimed very often."""
    if must_trim(leases):
        calls.maintenance.trim([lease for lease in leases if lease.attempt > EXECUTIONS_KEPT])
    return leases


def must_trim(leases: Sequence[c.Lease]) -> bool:
    return any(lease.attempt > EXECUTIONS_KEPT for lease in leases)


def _run(calls: Calls, command: c.Claim, *, is_repeat: bool = False) -> Claimed:
    tries = int(is_repeat)

    def work(connection: Connection) -> Claimed:
        nonlocal tries
        tries += 1
        return claim(calls.database, connection, command, is_repeat=tries > 1)

    return calls.connections.run(work, is_repeatable=command.request_id is not None)


def check_claim_queues(database: Database, connection: Connection, queues: Sequence[str]) -> None:
    """N8: refuses claims from a queue that is used with acquire."""
    for name, mode in modes(database, connection, set(queues) - database.claim_queues).items():
        if mode == QueueUse.ACQUIRE:
            raise QueueRefused(f"queue {name!r} is claimed by acquire only; claim from another queue")
        if mode is not None:
            database.claim_queues.add(name)
        if mode == QueueUse.RULED:
            database.ruled_queues.add(name)


class Claimed(NamedTuple):
    leases: list[c.Lease]
    has_arrived: bool = False
    """There are arrivals to admit."""
    expired_from: int | None = None
    """Nothing was granted, and there are leases that expired at this time or later."""
    is_unfinished: bool = False
    """Many jobs were found behind full limits, and there may be others."""


def claim(database: Database, connection: Connection, command: c.Claim, *, is_repeat: bool) -> Claimed:
    """`is_repeat`: the same request may still be at work on a connection that was lost; wait for its end."""
    claimed = _claim_once(database, connection, command, is_repeat=is_repeat)
    if claimed.leases or not _is_granted(database, connection, command):
        return claimed
    return _claim_once(database, connection, command, is_repeat=is_repeat)


def _is_granted(database: Database, connection: Connection, command: c.Claim) -> bool:
    """C5: the same request may have been committed after the snapshot of a statement that was granted nothing."""
    if command.request_id is None:
        return False
    (is_known,) = database.one(connection, "request_known", {"request_id": command.request_id})
    return bool(is_known)


def _claim_once(database: Database, connection: Connection, command: c.Claim, *, is_repeat: bool) -> Claimed:
    given = parameters(command)
    waits = is_repeat and command.request_id is not None
    if not database.limited_queues.isdisjoint(command.queues):
        return _claimed_under_limits(database, connection, command, {**given, "waits": waits})
    if waits:
        with connection.transaction():
            connection.execute("select pg_advisory_xact_lock(%s)", [given["request_key"]])
            claimed = _claimed(database, connection, command, given)
    else:
        claimed = _claimed(database, connection, command, given)
    if not claimed.leases and not database.limited_queues.isdisjoint(command.queues):  # as is known now
        return _claimed_under_limits(database, connection, command, {**given, "waits": False})
    return claimed


def parameters(command: c.Claim) -> dict[str, Any]:
    kinds = {kind: policy for kind, policy in command.kinds.items() if policy != NO_POLICY}
    return {
        "request_id": command.request_id,
        "request_key": int8(None if command.request_id is None else advisory_key(command.request_id)),
        "worker": command.worker,
        "limit": int8(command.limit),
        "defaults": DEFAULT_TERMS,
        "written_defaults": None if DEFAULT_TERMS == UNWRITTEN_TERMS else DEFAULT_TERMS,
        "unwritten": UNWRITTEN_TERMS,
        "timeout_leases": int8(TIMEOUT_LEASES),
        "tokens": texts(command.tokens),
        "kinds": texts(list(kinds)),
        "policies": texts([policy_text(policy) for policy in kinds.values()]),
    }


def _claimed(database: Database, connection: Connection, command: c.Claim, given: dict[str, Any]) -> Claimed:
    look = database.positions.look(command.queues)
    claimed = _claimed_from(look, database, connection, command, given)
    if claimed.leases or look.is_full:
        return claimed
    return _claimed_from(database.positions.look(command.queues, is_full=True), database, connection, command, given)


def _claimed_from(
    look: Look, database: Database, connection: Connection, command: c.Claim, given: dict[str, Any]
) -> Claimed:
    plain = LookedClaim(database, command, look, database.expiry_position.from_at())
    return plain.claimed(database.all(connection, "claim", plain.parameters(given)))


class LookedClaim(NamedTuple):
    """One claim without limits, from where it looks: its parameters, and its result."""

    database: Database
    command: c.Claim
    look: Look
    expired_from: int

    def parameters(self, given: dict[str, Any]) -> dict[str, Any]:
        return {**given, **self.look.parameters(), "expired_from": int8(self.expired_from)}

    def claimed(self, rows: list[Row]) -> Claimed:
        """By the rows of claim.sql. It is committed."""
        database = self.database
        granted = [row for row in rows if row[0] is not None]
        database.remember((row[11], held_of(row)) for row in granted)
        leases = [lease_of(row) for row in granted]
        last = rows[-1]
        if last[27]:
            database.limited_queues.update(last[27])
        if granted and last[0] is None:  # a repeat: it did not look for jobs
            return Claimed(leases)
        now, (has_arrived, has_expired, served, _) = last[15], last[24:]
        places = [(row[1], 9 - row[5], row[21], row[22]) for row in granted]
        is_exhausted = len(granted) < self.command.limit
        database.positions.advance(self.look.served(served), places, now, is_exhausted=is_exhausted)
        if not granted and not has_expired:
            database.expiry_position.found_none(self.expired_from, now)
        return Claimed(leases, has_arrived, self.expired_from if has_expired else None)


def held_of(row: Row, limits: tuple[str, ...] = ()) -> Held:
    job_id, queue, lane, no = row[0], row[1], row[4], row[23]
    rules = None if row[10] is None else rules_of(row[10])
    if rules is None:
        return Held(job_id, no, queue, lane, limits=limits)
    has_key = rules.unique is not None
    if rules.group is None and not rules.chain:
        return Held(job_id, no, queue, lane, limits=limits, has_key=has_key)
    if rules.chain or lane is not None:
        return Held(job_id, no, queue, lane, causes=True, limits=limits, has_key=has_key)
    return Held(job_id, no, queue, lane, group=rules.group, limits=limits, has_key=has_key)


def _claimed_under_limits(
    database: Database, connection: Connection, command: c.Claim, given: dict[str, Any]
) -> Claimed:
    queues = list(dict.fromkeys(command.queues))
    if not database.limit_names(queues):  # so that not even the first claim here goes the long way for nothing
        names = database.all(connection, "limit_names", {"queues": texts(queues)})
        database.learn_limit_names(queues, (name for (name,) in names))
    plain = None if given["waits"] else plain_claim(database, command, given)
    if plain is not None:
        with batch.transaction(connection):
            _, _, rows, _ = batch.run(connection, batch.BEGIN, plain.lock(), plain.claim(), batch.COMMIT)
        found = plain.claimed(rows)
        plain.learn(found)
        if found.is_plain:
            leases = remember(database, granted_under_limits(database, found.rows))
            return Claimed(leases, found.has_arrived, plain.expired_from if found.has_expired else None)
    expired_from = database.expiry_position.from_at()
    looked = Limited(database, connection, command, given, expired_from).run()
    if looked.is_repeated:
        nowhere = Look([], [])
        rows = database.all(connection, "claim", {**given, **nowhere.parameters(), "expired_from": int8(expired_from)})
        looked = looked._replace(rows=[row for row in rows if row[0] is not None])
    leases = remember(database, granted_under_limits(database, looked.rows))
    if looked.is_repeated:
        return Claimed(leases)
    database.positions.advance((), looked.taken, looked.now, is_exhausted=False)
    if not leases and not looked.has_expired:
        database.expiry_position.found_none(expired_from, looked.now)
    return Claimed(
        leases, looked.has_arrived, expired_from if looked.has_expired else None, is_unfinished=looked.is_unfinished
    )


def granted_under_limits(database: Database, rows: Sequence[Row]) -> list[tuple[c.Lease, Held]]:
    leases = ((row, lease_of(row)) for row in rows)
    return [(lease, held_of(row, limits_held(database, lease.job))) for row, lease in leases]


def remember(database: Database, granted: Sequence[tuple[c.Lease, Held]]) -> list[c.Lease]:
    """It is committed: reports on these leases take the fast path."""
    database.remember((lease.token, held) for lease, held in granted)
    return [lease for lease, _ in granted]


def limits_held(database: Database, job: JobSpec) -> tuple[str, ...]:
    """The names of the limits that a lease on this job may hold a place of."""
    own = (QUEUE_LIMIT + job.queue,) if job.queue in database.limited_queues else ()
    return own if job.rules is None else (*own, *(limit.name for limit in job.rules.limits))


def lease_of(row: Row) -> c.Lease:
    """A row of claim.sql."""
    return c.Lease(
        JobSpec(
            row[0],
            row[1],
            row[2],
            row[3].encode(),
            row[4],
            row[5],
            row[6],
            row[7] or 0,
            None if row[8] is None else policy_of(row[8]),
            None,
            None if row[9] is None else headers_of(row[9]),
            None if row[10] is None else rules_of(row[10]),
        ),
        row[11],
        row[12],
        row[13],
        row[14],
        row[15],
        row[16],
        terms_of(row[17]),
        row[18] or 0,
        row[19] or 0,
        row[20],
    )
