"""Leases as statements return them: one row for each, by name, with the job it is on."""

from __future__ import annotations

from typing import NamedTuple

from leasemill.kernel.commands import Lease
from leasemill.kernel.model import QUEUE_LIMIT, JobSpec, Rules
from leasemill.store.postgres.known import Known, LeaseInfo
from leasemill.store.postgres.rows.values import headers_of, policy_of, rules_of, terms_of


class GrantedRow(NamedTuple):
    """The columns of `_lease.sql`, in their order."""

    id: str
    queue: str
    kind: str
    payload: str
    lane: str | None
    priority: int
    run_at: int | None
    delay_us: int | None
    policy: list[int | None] | None
    headers: str | None
    rules: str | None
    token: str
    attempt: int
    fence: int
    worker: str
    leased_at: int
    expires_at: int
    terms: list[int] | None
    retries: int | None
    expirations: int | None
    created_at: int
    available_at: int
    seq: int
    no: int


WIDTH = len(GrantedRow._fields)
"""So many columns of a row are the lease; those behind them are about the whole claim."""


def lease_of(row: GrantedRow) -> Lease:
    spec = JobSpec(
        row.id,
        row.queue,
        row.kind,
        row.payload.encode(),
        row.lane,
        row.priority,
        row.run_at,
        row.delay_us or 0,
        None if row.policy is None else policy_of(row.policy),
        None,
        None if row.headers is None else headers_of(row.headers),
        None if row.rules is None else rules_of(row.rules),
    )
    return Lease(
        spec,
        row.token,
        row.attempt,
        row.fence,
        row.worker,
        row.leased_at,
        row.expires_at,
        terms_of(row.terms),
        row.retries or 0,
        row.expirations or 0,
        row.created_at,
    )


def info_of(known: Known, row: GrantedRow, rules: Rules | None) -> LeaseInfo:
    """Return the facts that reports on this lease go by."""
    limits: tuple[str, ...] = (QUEUE_LIMIT + row.queue,) if row.queue in known.limited_queues else ()
    if rules is None:
        return LeaseInfo(row.id, row.no, row.queue, row.lane, limits=limits)
    limits += tuple(limit.name for limit in rules.limits)
    causes = bool(rules.chain) or (rules.group is not None and row.lane is not None)
    group = None if causes else rules.group
    has_key = rules.unique is not None
    return LeaseInfo(row.id, row.no, row.queue, row.lane, causes, group, limits, has_key)


def granted(known: Known, rows: list[GrantedRow]) -> list[Lease]:
    """The leases, which are committed: reports on them take the fast path."""
    leases = [lease_of(row) for row in rows]
    known.remember((row.token, info_of(known, row, lease.job.rules)) for row, lease in zip(rows, leases, strict=True))
    return leases
