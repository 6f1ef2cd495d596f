"""claim: leases on the first claimable jobs, in one statement; and with the ack that goes before it (C8).

What a claim finds is returned at once. Expired leases are looked for before it, when it is time (L7). A claim that is
granted nothing looks again, each time for something else that may give it a job: from the watermark instead of from
where earlier claims got to, for leases that have expired, for jobs that wait for their admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from msgspec import Struct

from leasemill.errors import LeasemillError, QueueRefused
from leasemill.kernel import commands as c
from leasemill.kernel.model import EXECUTIONS_KEPT, TIMEOUT_LEASES
from leasemill.kernel.transitions.retry import DEFAULTS, NO_POLICY
from leasemill.store.postgres.context import VerbContext
from leasemill.store.postgres.known import Known, advisory_key
from leasemill.store.postgres.limits.claim import Limited
from leasemill.store.postgres.positions import Scan
from leasemill.store.postgres.rows.lease import WIDTH, granted, granted_rows
from leasemill.store.postgres.rows.tables import QueueUse
from leasemill.store.postgres.rows.values import UNWRITTEN_TERMS, policy_text, terms_numbers
from leasemill.store.postgres.statements import Execute
from leasemill.store.postgres.steps import BEGIN, COMMIT, Steps, TransactionAttempt, Verb, row, send, transact
from leasemill.store.postgres.verbs import ack
from leasemill.store.postgres.verbs.enqueue import modes

DEFAULT_TERMS: Final = list(terms_numbers(DEFAULTS))
"""I5: for what nobody asked for."""


class Claimed(NamedTuple):
    leases: list[c.Lease]
    has_arrived: bool = False
    """There are arrivals to admit."""
    expired_from: int | None = None
    """Nothing was granted, and there are leases that expired at this time or later."""
    is_unfinished: bool = False
    """Many jobs were found behind full limits, and there may be others."""


def claim(context: VerbContext, command: c.Claim) -> Verb[list[c.Lease]]:
    # The common claim is one statement, which is a transaction. Around it stands what must come before (queues that are
    # used with acquire, leases that have expired, jobs that have arrived in lanes), each only when this process has a
    # reason to look, and what a claim that found nothing does before it says so.
    known, maintenance = context.known, context.maintenance
    if not known.claim_queues.issuperset(command.queues):
        yield from transact(lambda _: _check_queues(known, command.queues))
    if known.expiry_position.is_look_due:
        yield from maintenance.look()
    if known.has_arrived:  # the claim before this one saw them
        yield from maintenance.admit()
    claimed = yield from _transact(known, command)
    while claimed.is_unfinished and not claimed.leases:
        claimed = yield from _transact(known, command)
    if not claimed.leases and (yield from maintenance.found_more(claimed.expired_from, claimed.has_arrived)):
        claimed = yield from _transact(known, command)
    known.has_arrived = claimed.has_arrived
    yield from _trim(context, claimed.leases)
    return claimed.leases


def _trim(context: VerbContext, leases: Sequence[c.Lease]) -> Verb[None]:
    """I8: of jobs that were claimed very often."""
    worn = [lease for lease in leases if lease.attempt > EXECUTIONS_KEPT]
    if worn:
        yield from context.maintenance.trim(worn)


def _check_queues(known: Known, queues: Sequence[str]) -> Steps[None]:
    """N8: refuses claims from a queue that is used with acquire."""
    for name, mode in (yield from modes(known, set(queues) - known.claim_queues)).items():
        if mode == QueueUse.ACQUIRE:
            raise QueueRefused(f"queue {name!r} is claimed by acquire only; claim from another queue")
        if mode is not None:
            known.claim_queues.add(name)
        if mode == QueueUse.RULED:
            known.ruled_queues.add(name)


def _transact(known: Known, command: c.Claim) -> Verb[Claimed]:
    return transact(lambda attempt: _claim(known, command, attempt), is_repeatable=command.request_id is not None)


def _claim(known: Known, command: c.Claim, attempt: TransactionAttempt) -> Steps[Claimed]:
    """An attempt after the first waits for the end of the one before it, which may still be at work (C5)."""
    waits = attempt.number > 1 and command.request_id is not None
    claimed = yield from _claim_once(known, command, waits=waits)
    if not claimed.leases and command.request_id is not None:
        # C5: the same request may have been committed after the snapshot of a statement that was granted nothing.
        (is_known,) = yield from row("request_known", {"request_id": command.request_id})
        if is_known:
            claimed = yield from _claim_once(known, command, waits=waits)
    return claimed


def _claim_once(known: Known, command: c.Claim, *, waits: bool) -> Steps[Claimed]:
    # A claim looks from where earlier ones of this process got to; if that finds nothing, from the watermark, for
    # another process may have committed a job behind it. Queues with limits are left alone by the plain statement,
    # which reports them: from then on this process takes the other road for them.
    given = {**parameters(command), "waits": waits}
    if known.limited_queues.isdisjoint(command.queues):
        scan = known.positions.scan(command.queues)
        claimed = yield from _claim_from(scan, known, command, given)
        if not claimed.leases and not scan.is_full:
            scan = known.positions.scan(command.queues, is_full=True)
            claimed = yield from _claim_from(scan, known, command, given)
        if claimed.leases or known.limited_queues.isdisjoint(command.queues):
            return claimed
        given["waits"] = False  # they have a limit, as is known now
    return (yield from _claim_under_limits(known, command, given))


def parameters(command: c.Claim) -> dict[str, Any]:
    kinds = {kind: policy for kind, policy in command.kinds.items() if policy != NO_POLICY}
    return {
        "request_id": command.request_id,
        "request_key": None if command.request_id is None else advisory_key(command.request_id),
        "worker": command.worker,
        "limit": command.limit,
        "defaults": DEFAULT_TERMS,
        "written_defaults": None if DEFAULT_TERMS == UNWRITTEN_TERMS else DEFAULT_TERMS,
        "unwritten": UNWRITTEN_TERMS,
        "timeout_leases": TIMEOUT_LEASES,
        "tokens": command.tokens,
        "kinds": list(kinds),
        "policies": [policy_text(policy) for policy in kinds.values()],
    }


class ClaimSight(Struct, frozen=True, array_like=True):
    """What a claim saw besides the jobs it was granted."""

    now: int
    has_arrived: bool
    has_expired: bool
    served: list[str] | None
    """The queues that were looked through; None: all."""
    limited: list[str] | None
    """The queues that have limits, and were left alone."""


_sight = msgspec.json.Decoder(ClaimSight).decode


def _claim_from(scan: Scan, known: Known, command: c.Claim, given: dict[str, Any]) -> Steps[Claimed]:
    """One statement, a transaction of its own; after an earlier attempt, behind the lock that one has."""
    expired_from = known.expiry_position.from_at()
    statement = Execute("claim", {**given, **scan.parameters(), "expired_from": expired_from})
    if given["waits"]:
        *_, found, _ = yield from send(BEGIN, Execute("lock_number", {"key": given["request_key"]}), statement, COMMIT)
    else:
        (found,) = yield from send(statement)
    taken = granted_rows(found)
    leases = granted(known, taken)
    text = found[0][WIDTH]
    if text is None:  # a repeat (C5) did not look for jobs
        return Claimed(leases)
    seen = _sight(text)
    known.limited_queues.update(seen.limited or ())
    keys = [one.scan_key for one in taken]
    is_exhausted = len(taken) < command.limit
    known.positions.advance(scan.served(seen.served), keys, seen.now, is_exhausted=is_exhausted)
    if not taken and not seen.has_expired:
        known.expiry_position.found_none(expired_from, seen.now)
    return Claimed(leases, seen.has_arrived, expired_from if seen.has_expired else None)


def _claim_under_limits(known: Known, command: c.Claim, given: dict[str, Any]) -> Steps[Claimed]:
    """T1 to T15, in one transaction under the locks of the limits."""
    expired_from = known.expiry_position.from_at()
    looked = yield from Limited(known, command, given, expired_from).steps()
    if looked.is_repeated:
        nowhere = {**given, **Scan([], []).parameters(), "expired_from": expired_from}
        (found,) = yield from send(Execute("claim", nowhere))
        return Claimed(granted(known, granted_rows(found)))
    leases = granted(known, granted_rows(looked.rows))
    known.positions.advance((), looked.taken, looked.now, is_exhausted=False)
    if not leases and not looked.has_expired:
        known.expiry_position.found_none(expired_from, looked.now)
    has_expired = looked.has_expired and not leases
    return Claimed(leases, looked.has_arrived, expired_from if has_expired else None, looked.is_unfinished)


# With an ack before it (C8) ------------------------------------------------------------------------------------------


class HandedRow(NamedTuple):
    """The columns behind the lease of `hand_over.sql`: the new head of a lane, granted if there is a lease."""

    has_arrived: bool
    queue: str
    lane: str
    rank: int
    available_at: int
    seq: int
    id: str


class HandedOver(NamedTuple):
    outcomes: list[c.AckOutcome]
    leases: list[c.Lease]
    has_left_over: bool
    """A new head of a lane was not granted."""
    has_arrived: bool


def ack_and_claim(
    context: VerbContext, acks: c.Ack, claims: c.Claim
) -> Verb[tuple[list[c.AckOutcome], list[c.Lease] | None]]:
    """End leases, let the next jobs of their lanes become heads and grant those, in one message and one commit. If
    anything is not plain, send an ack and then a claim."""
    known = context.known
    handed: HandedOver | None = None
    was_sent = False
    if _may_hand_over(known, claims) and (leases := ack.plain_leases(known, acks.reports)) is not None:

        def work(attempt: TransactionAttempt) -> Steps[HandedOver | None]:
            nonlocal was_sent
            was_sent |= attempt.may_have_happened
            return _hand_over(known, acks, claims, leases, attempt)

        handed = yield from transact(work)
    if handed is None:
        outcomes = yield from ack.ack(context, acks, may_have_happened=was_sent)
        return outcomes, (yield from _claim_or_none(context, claims))
    if handed.has_left_over:
        context.signal.notify()
    if not handed.leases:
        return handed.outcomes, (yield from _claim_or_none(context, claims))
    known.has_arrived = handed.has_arrived
    yield from _trim(context, handed.leases)
    return handed.outcomes, handed.leases


def _claim_or_none(context: VerbContext, claims: c.Claim) -> Verb[list[c.Lease] | None]:
    """The ack stands, whatever becomes of the claim: the caller repeats it."""
    try:
        return (yield from claim(context, claims))
    except LeasemillError:
        return None


def _may_hand_over(known: Known, claims: c.Claim) -> bool:
    """Return True if only the ends stand between the claim and its jobs. L7: expiries come between the two."""
    return (
        not known.has_arrived
        and known.claim_queues.issuperset(claims.queues)
        and known.limited_queues.isdisjoint(claims.queues)
        and not known.expiry_position.is_look_due
    )


def _hand_over(
    known: Known, acks: c.Ack, claims: c.Claim, plain: ack.PlainLeases, attempt: TransactionAttempt
) -> Steps[HandedOver | None]:
    """None: a lease is not held, or an attempt before this one may have ended it."""
    # An ack that may have been carried out must not be sent again beside a claim: a second claim could be granted other
    # jobs. What is known of the leases is forgotten before the message is sent, so a failure leaves them to the exact
    # path.
    if attempt.may_have_happened:
        return None
    heads = ack.given_lanes(plain.lanes)
    given = {
        **parameters(claims),
        **known.positions.scan(claims.queues).parameters(),
        "served": list(dict.fromkeys(claims.queues)),
        **heads,
    }
    ended = Execute("ack", ack.parameters(plain.found, heads))
    ack.forget(known, acks.reports)
    try:
        _, _, found, _ = yield from send(BEGIN, ended, Execute("hand_over", given), COMMIT)
    except psycopg.Error as error:
        if error.sqlstate != ack.NOT_HELD:
            raise
        return None
    next_heads = [HandedRow._make(one[WIDTH:]) for one in found]
    taken = granted_rows(found)
    leases = granted(known, taken)
    known.positions.lower(
        (head.queue, head.rank, head.available_at, head.seq)
        for one, head in zip(found, next_heads, strict=True)
        if one[0] is None
    )
    hints: dict[tuple[str, str | None], c.LaneHint] = {
        (head.queue, head.lane): c.LaneHint(head.id, None) for head in next_heads
    }
    has_arrived = any(head.has_arrived for head in next_heads)
    return HandedOver(plain.outcomes(hints), leases, len(taken) < len(found), has_arrived)
