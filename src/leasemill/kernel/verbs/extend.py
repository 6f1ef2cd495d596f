"""extend: a lease is held for longer. Rules L1 and L9."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from leasemill.kernel.bounds import check_reports
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import LeaseExtended
from leasemill.kernel.model import Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import does_not_follow, reported
from leasemill.kernel.transitions.fence import Lost, execution_of, held, refuse
from leasemill.kernel.transitions.grant import expires_at

__all__ = ["Extend", "ExtendOutcome", "Extended", "LeaseRef"]


class LeaseRef(Struct, frozen=True):
    job_id: str
    token: str


class Extended(Struct, frozen=True):
    job_id: str
    expires_at: int


ExtendOutcome: TypeAlias = Extended | Lost


class Extend(Command[list[ExtendOutcome]], frozen=True):
    leases: Sequence[LeaseRef]


def check(command: Extend) -> None:
    check_reports(command.leases)


def decide(state: State, lease: LeaseRef, now: int) -> Decision[ExtendOutcome]:
    job = state.jobs.get(lease.job_id)
    execution = execution_of(job, lease.token)
    if execution is None or not held(execution, now):
        return refuse(job, lease.job_id, execution, lease.token, Verb.EXTEND, now)
    until = expires_at(execution.terms, now)
    if until <= execution.expires_at:
        return (), Extended(lease.job_id, execution.expires_at)
    return (LeaseExtended(lease.job_id, lease.token, now, until),), Extended(lease.job_id, until)


def apply(state: State, event: LeaseExtended) -> None:
    job, execution = reported(state, event)
    if event.expires_at <= execution.expires_at:
        does_not_follow(event, "the lease is held for longer")  # L9
    earlier, execution.expires_at = execution.expires_at, event.expires_at
    state.leases.push(event.expires_at, execution.fence, execution)
    state.leases.remove(earlier, execution.fence)
    job.updated_at = event.at
