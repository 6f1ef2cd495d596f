"""expire: what happens to jobs whose lease has run out. Rules L7, F3 and F4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import AnyEvent, ExecutionDone, LeaseExpired
from leasemill.kernel.model import NEVER, AbortReason, JobState, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import end_unfinished, expire_one, uncommitted

__all__ = ["Expiration", "Expire"]


class Expiration(Struct, frozen=True):
    """A lease that expired; `state` is the job's afterwards."""

    job_id: str
    worker: str
    attempt: int
    stuck_us: int
    state: JobState


class Expire(Command[list[Expiration]], frozen=True):
    limit: int


def decide(state: State, command: Expire, now: int) -> Decision[list[Expiration]]:
    """L7: record the leases that have run out, at most `limit` of them, the longest expired first."""
    events: list[AnyEvent] = []
    outcomes: list[Expiration] = []
    for execution in state.leases.first(command.limit, now):
        event, after = expire_one(state.jobs[execution.job_id], execution, now)
        events.append(event)
        stuck_us = now - execution.expires_at
        outcomes.append(Expiration(execution.job_id, execution.worker, execution.attempt, stuck_us, after))
    return tuple(events), outcomes


def expire_regardless(state: State, limit: int, now: int, until: int = NEVER) -> list[AnyEvent]:
    """End timed leases whatever their time, or those until then: their holders are known to be gone."""
    found = state.leases.first(limit, until)
    return [expire_one(state.jobs[execution.job_id], execution, now)[0] for execution in found]


def apply(state: State, event: LeaseExpired) -> None:
    job, execution = uncommitted(state, event)
    execution.reason = AbortReason.EXPIRED
    end_unfinished(state, job, execution, Verb.EXPIRE, event)


MAY_EXPIRE: Final = frozenset({LeaseExpired, ExecutionDone})
"""Events in which an expiry may be recorded."""


def expirations(state: State, events: Sequence[AnyEvent]) -> list[Expiration]:
    """The leases that expired, of events that were just applied to this state."""
    found: list[Expiration] = []
    for event in events:
        if isinstance(event, LeaseExpired):
            after = JobState.DEAD if event.is_final else JobState.READY
        elif isinstance(event, ExecutionDone) and event.ended_by is Verb.EXPIRE:
            after = JobState.SUCCEEDED
        else:
            continue
        executions = state.jobs[event.job_id].executions
        execution = next(one for one in reversed(executions) if one.token == event.token)
        stuck_us = max(0, event.at - execution.expires_at)
        found.append(Expiration(event.job_id, execution.worker, execution.attempt, stuck_us, after))
    return found
