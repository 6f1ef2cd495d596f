"""One command, start to end: check, decide, apply, answer.

A store calls `check` when a command arrives and `run` with its lock held. `run` may refuse (raise) only before anything
is applied; afterwards the events it returns have been applied to the state and must be made durable, or the state
thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from leasemill.kernel import ending, fence, grant, read
from leasemill.kernel.command import Appliers, Command, Commands, Decision
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import State
from leasemill.kernel.verbs import (
    ack,
    acquire,
    cancel,
    claim,
    commit,
    enqueue,
    expire,
    extend,
    nack,
    purge,
    queues,
    redrive,
    release,
    start,
)

AnswerT = TypeVar("AnswerT")
OutcomeT = TypeVar("OutcomeT")

VERBS: Final[Commands] = {
    **enqueue.COMMANDS,
    **claim.COMMANDS,
    **acquire.COMMANDS,
    **start.COMMANDS,
    **extend.COMMANDS,
    **commit.COMMANDS,
    **ack.COMMANDS,
    **nack.COMMANDS,
    **release.COMMANDS,
    **expire.COMMANDS,
    **cancel.COMMANDS,
    **redrive.COMMANDS,
    **purge.COMMANDS,
    **queues.COMMANDS,
}
APPLIERS: Final[Appliers] = {
    **enqueue.APPLIERS,
    **grant.APPLIERS,
    **start.APPLIERS,
    **extend.APPLIERS,
    **commit.APPLIERS,
    **ending.APPLIERS,
    **nack.APPLIERS,
    **release.APPLIERS,
    **expire.APPLIERS,
    **fence.APPLIERS,
    **cancel.APPLIERS,
    **redrive.APPLIERS,
    **purge.APPLIERS,
    **queues.APPLIERS,
}


def check(command: Command[Any]) -> None:
    """Refuse a command that is not well formed."""
    rules = VERBS.get(type(command))
    if rules is None:
        read.check(command)
    else:
        rules.check(command)


def run(state: State, command: Command[AnswerT], now: int) -> tuple[list[AnyEvent], AnswerT]:
    """Carry out a command; returns the events, which have been applied, and the answer for the caller."""
    events: list[AnyEvent] = []
    rules = VERBS.get(type(command))
    if rules is None:
        answer: AnswerT = read.ANSWERS[type(command)](state, command, now)
        return events, answer

    def do(decision: Decision[OutcomeT]) -> OutcomeT:
        for event in decision[0]:
            APPLIERS[type(event)](state, event)
            events.append(event)
        return decision[1]

    answer = rules.decide(state, command, now, do)
    return events, answer


def apply(state: State, event: AnyEvent) -> None:
    """Carry out one event."""
    APPLIERS[type(event)](state, event)


def apply_all(state: State, events: Iterable[AnyEvent]) -> None:
    """Carry out events, in order."""
    for event in events:
        APPLIERS[type(event)](state, event)
