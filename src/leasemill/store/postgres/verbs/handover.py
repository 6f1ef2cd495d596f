"""An ack with a claim (C8): what ends, the heads that follow in their lanes, the places that are free then and what is
granted, in one message and one commit. Whatever is not plain is an ack, and then a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import psycopg

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.store.postgres.calls import Calls
from leasemill.store.postgres.database import Database, Held
from leasemill.store.postgres.limits.plain import LOCKED, PlainClaim, plain_claim
from leasemill.store.postgres.verbs import ack, claim
from leasemill.store.postgres.verbs.reports import REPORTS_AT_ONCE, known
from leasemill.store.postgres.wire import batch
from leasemill.store.postgres.wire.arrays import texts
from leasemill.store.postgres.wire.batch import Sent
from leasemill.store.postgres.wire.connections import Connection, Row
from leasemill.store.postgres.wire.looped import LoopMessages, MessageFailed

Answer: TypeAlias = tuple[list[c.AckOutcome], list[c.Lease] | None]


class HandedOver(NamedTuple):
    """What a message has come to, if its COMMIT succeeds."""

    outcomes: list[c.AckOutcome]
    leases: list[c.Lease]
    learn: Callable[[], None]
    """Once it is committed: what this process knows by it."""
    left_over: int
    """How many new heads of lanes were not granted."""
    has_arrived: bool
    places: Collection[str] = ()
    """The limits of which more places were freed than taken."""
    is_all: bool = False
    """Nothing else is to be looked for, if nothing was granted."""


class MessagePlan(Protocol):
    """One message, and its result when it is committed."""

    @property
    def acks(self) -> c.Ack: ...

    @property
    def claims(self) -> c.Claim: ...

    def statements(self) -> list[Sent]: ...

    def handed(self, answers: list[list[Row]]) -> HandedOver:
        """By the rows of the statements before COMMIT. Changes nothing."""
        ...


async def arun(calls: Calls, messages: LoopMessages, acks: c.Ack, claims: c.Claim) -> Answer | Callable[[], Answer]:
    """On the loop itself, if a connection is idle; or what is left to do in a thread."""
    plan = plan_of(calls.database, acks, claims)
    if plan is None:
        return partial(run_apart, calls, acks, claims)
    early: list[HandedOver] = []

    def read(answers: list[list[Row]]) -> None:
        with suppress(Exception):  # raised again below
            early.append(plan.handed(answers))

    match await messages.ask(plan.statements(), read):
        case None:
            return partial(run_plan, calls, plan)
        case MessageFailed() as failed:
            return partial(run_apart, calls, acks, claims, was_lost=failed.is_lost)
        case answers:
            handed = early[0] if early else plan.handed(answers[:-1])
            handed.learn()
            if not (handed.leases or handed.is_all) or handed.places or claim.must_trim(handed.leases):
                return partial(_finished, calls, claims, handed)
            return _finished(calls, claims, handed)


def run_plan(calls: Calls, plan: MessagePlan) -> Answer:
    is_lost = False

    def work(connection: Connection) -> HandedOver | None:
        nonlocal is_lost
        if is_lost:
            return None
        is_lost = True
        try:
            with batch.transaction(connection):
                handed = plan.handed(batch.run(connection, *plan.statements())[:-1])
        except psycopg.Error as error:
            if error.sqlstate != ack.NOT_HELD:
                raise
            is_lost = False
            return None
        handed.learn()
        return handed

    handed = calls.connections.run(work)
    if handed is None:
        return run_apart(calls, plan.acks, plan.claims, was_lost=is_lost)
    return _finished(calls, plan.claims, handed)


def run_apart(calls: Calls, acks: c.Ack, claims: c.Claim, *, was_lost: bool = False) -> Answer:
    """An ack, and then a claim. `was_lost`: what looks like a repeat may be our own."""
    return ack.run(calls, acks, was_lost=was_lost), _claimed(calls, claims)


def _finished(calls: Calls, claims: c.Claim, handed: HandedOver) -> Answer:
    leases: list[c.Lease] | None = handed.leases
    if leases or handed.is_all:
        calls.database.has_arrived = handed.has_arrived
        claim.trimmed(calls, handed.leases)
    else:
        leases = _claimed(calls, claims)
    if handed.left_over or handed.places:
        calls.signal.notify()
    if handed.places:
        calls.free_places(handed.places)
    return handed.outcomes, leases


def _claimed(calls: Calls, claims: c.Claim) -> list[c.Lease] | None:
    try:
        return claim.run(calls, claims)
    except LeasemillError:
        return None


class HandoverPlan(NamedTuple):
    """Of what is plain: its one message, and its result."""

    database: Database
    acks: c.Ack
    claims: c.Claim
    found: dict[int, c.AckReport]
    lanes: dict[str, tuple[str, str]]
    """By job: its queue and lane."""

    def statements(self) -> list[Sent]:
        database, heads = self.database, ack.given_lanes(list(self.lanes.values()))
        given = {
            **claim.parameters(self.claims),
            **database.positions.look(self.claims.queues).parameters(),
            "served": texts(dict.fromkeys(self.claims.queues)),
            **heads,
        }
        return [
            batch.BEGIN,
            database.sent("ack_all", ack.parameters(self.found, heads)),
            database.sent("hand_over", given),
            batch.COMMIT,
        ]

    def handed(self, answers: list[list[Row]]) -> HandedOver:
        _, _, rows = answers
        granted = [(claim.lease_of(row), claim.held_of(row)) for row in rows if row[0] is not None]

        def learn() -> None:
            claim.remember(self.database, granted)
            self.database.positions.lower((row[25], *row[27:30]) for row in rows if row[0] is None)

        hints = {(row[25], row[26]): c.LaneHint(row[30], None) for row in rows}
        outcomes: list[c.AckOutcome] = [
            c.Acked(report.job_id, hints.get(self.lanes[report.job_id]) if report.job_id in self.lanes else None)
            for report in self.acks.reports
        ]
        leases = [lease for lease, _ in granted]
        return HandedOver(outcomes, leases, learn, len(rows) - len(granted), has_arrived=any(row[24] for row in rows))


class PlacesPlan(NamedTuple):
    """Under limits: the places of the leases that end can be taken by what is granted."""

    acks: c.Ack
    claims: c.Claim
    found: dict[int, c.AckReport]
    held: list[Held]
    """As `found`."""
    plain: PlainClaim

    def _lanes(self) -> list[tuple[str, str]]:
        return [(one.queue, one.lane) for one in self.held if one.lane is not None]

    def statements(self) -> list[Sent]:
        """The limits are only locked if they are free: an ack does not wait for them."""
        database, lanes = self.plain.database, self._lanes()
        heads = ack.given_lanes(lanes)
        advance = [database.sent("advance", heads)] if lanes else []
        given = {**ack.parameters(self.found, heads), "names": texts(self.plain.names)}
        return [batch.BEGIN, database.sent("ack_all_and_lock", given), *advance, self.plain.claim(), batch.COMMIT]

    def handed(self, answers: list[list[Row]]) -> HandedOver:
        _, ((*_, limits_locked),), *heads, rows = answers
        database = self.plain.database
        found = self.plain.claimed(rows, is_locked=limits_locked == LOCKED)
        granted = claim.granted_under_limits(database, found.rows)

        def learn() -> None:
            database.positions.lower((queue, rank, at, seq) for some in heads for queue, _, _, rank, at, seq in some)
            self.plain.learn(found)
            claim.remember(database, granted)

        hints = {(queue, lane): c.LaneHint(job_id, None) for some in heads for queue, lane, job_id, *_ in some}
        lanes = {one.job_id: (one.queue, one.lane) for one in self.held}
        outcomes: list[c.AckOutcome] = [
            c.Acked(report.job_id, hints.get(lanes[report.job_id])) for report in self.acks.reports
        ]
        freed = Counter(name for one in self.held for name in one.limits)
        if not found.is_plain:
            return HandedOver(outcomes, [], learn, len(hints), has_arrived=False, places=freed.keys())
        taken = Counter(name for _, one in granted for name in one.limits)
        return HandedOver(
            outcomes,
            [lease for lease, _ in granted],
            learn,
            len(hints),
            found.has_arrived,
            (freed - taken).keys(),
            is_all=not found.has_arrived and not found.has_expired,
        )


def plan_of(database: Database, acks: c.Ack, claims: c.Claim) -> MessagePlan | None:
    """None: it is left to the two. The reports are known no more: what a plan leaves over is the exact path's."""
    if database.has_arrived or not database.claim_queues.issuperset(claims.queues):
        return None
    if database.expiry_position.is_look_due:
        return None  # L7: between the two
    found = known(database, acks.reports)
    if not 0 < len(found) == len(acks.reports) <= REPORTS_AT_ONCE:
        return None
    held = [database.leases[report.token] for report in found.values()]
    if any(one.causes or one.group is not None for one in held):
        return None
    plan: MessagePlan
    if not database.limited_queues.isdisjoint(claims.queues):
        plain = plain_claim(database, claims, claim.parameters(claims))
        if plain is None:
            return None
        plan = PlacesPlan(acks, claims, found, held, plain)
    elif any(one.limits for one in held):
        return None
    else:
        lanes = {one.job_id: (one.queue, one.lane) for one in held if one.lane}
        plan = HandoverPlan(database, acks, claims, found, lanes)
    for report in acks.reports:
        database.leases.pop(report.token, None)
    return plan
