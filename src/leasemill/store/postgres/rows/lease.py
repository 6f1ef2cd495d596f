"""Leases as statements return them: one row for each, by name, with the job it is on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from leasemill.kernel.commands import Lease
from leasemill.kernel.model import QUEUE_LIMIT, JobSpec, Rules
from leasemill.store.postgres.known import Known, LeaseInfo
from leasemill.store.postgres.positions import ScanKey
from leasemill.store.postgres.rows.values import headers_of, policy_of, rules_of, terms_of
from leasemill.store.postgres.steps import Row


class GrantedRow(NamedTuple):
    """The columns of `_lease.sql`, in their order."""

    id: str
    queue: str
    kind: str
    payload: str
    lane: str | None
    run_at: int | None
    delay_us: int | None
    policy: Sequence[int | None] | None
    headers: str | None
    rules: str | None
    token: str
    worker: str
    terms: Sequence[int] | None
    numbers: tuple[int, int, int, int, int, int, int, int, int, int, int]
    """Priority, attempt, fence, leased_at, expires_at, retries, expirations, created_at, available_at, seq, no."""

    @property
    def scan_key(self) -> ScanKey:
        """The row of `ready` that the job had."""
        priority, *_, available_at, seq, _ = self.numbers
        return self.queue, 9 - priority, available_at, seq


WIDTH = len(GrantedRow._fields)
"""So many columns of a row are the lease; those behind them are about the whole claim."""


def granted_rows(found: Iterable[Row]) -> list[GrantedRow]:
    """The leases, by their fences. A claim that was granted nothing returns one row, without a lease."""
    rows = [GrantedRow(*one[:WIDTH]) for one in found if one[0] is not None]
    rows.sort(key=lambda row: row.numbers[2])
    return rows


def lease_of(row: GrantedRow) -> Lease:
    priority, attempt, fence, leased_at, expires_at, retries, expirations, created_at, _, _, _ = row.numbers
    spec = JobSpec(
        row.id,
        row.queue,
        row.kind,
        row.payload.encode(),
        row.lane,
        priority,
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
        attempt,
        fence,
        row.worker,
        leased_at,
        expires_at,
        terms_of(row.terms),
        retries,
        expirations,
        created_at,
    )


def info_of(known: Known, row: GrantedRow, rules: Rules | None) -> LeaseInfo:
    """Return the facts that reports on this lease go by."""
    limits: tuple[str, ...] = (QUEUE_LIMIT + row.queue,) if row.queue in known.limited_queues else ()
    if rules is None:
        return LeaseInfo(row.id, row.numbers[-1], row.queue, row.lane, limits=limits)
    limits += tuple(limit.name for limit in rules.limits)
    causes = bool(rules.chain) or (rules.group is not None and row.lane is not None)
    group = None if causes else rules.group
    has_key = rules.unique is not None
    return LeaseInfo(row.id, row.numbers[-1], row.queue, row.lane, causes, group, limits, has_key)


def granted(known: Known, rows: list[GrantedRow]) -> list[Lease]:
    """The leases, which are committed: reports on them take the fast path."""
    leases = [lease_of(row) for row in rows]
    known.remember((row.token, info_of(known, row, lease.job.rules)) for row, lease in zip(rows, leases, strict=True))
    return leases
