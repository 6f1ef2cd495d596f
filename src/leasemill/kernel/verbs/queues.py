"""pause, resume and set_policy: what an operator does to a whole queue. Rules O3 and O4."""

from __future__ import annotations

from leasemill.kernel.bounds import check_name, check_policy
from leasemill.kernel.command import Command, Decision
from leasemill.kernel.events import QueuePaused, QueuePolicySet, QueueResumed
from leasemill.kernel.model import Policy, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.actions import check_operator, record

__all__ = ["Pause", "Resume", "SetPolicy"]


class Pause(Command[None], frozen=True):
    queue: str
    by: str
    reason: str


class Resume(Command[None], frozen=True):
    queue: str
    by: str
    reason: str


class SetPolicy(Command[None], frozen=True):
    queue: str
    policy: Policy
    by: str
    reason: str


def check(command: Pause | Resume | SetPolicy) -> None:
    check_name("queue", command.queue)
    check_operator(command)
    if isinstance(command, SetPolicy):
        check_policy(command.policy)


def decide_pause(state: State, command: Pause, now: int) -> Decision[None]:
    queue = state.queues.get(command.queue)
    if queue is not None and queue.is_paused:
        return (), None
    return (QueuePaused(command.queue, now, command.by, command.reason),), None


def decide_resume(state: State, command: Resume, now: int) -> Decision[None]:
    queue = state.queues.get(command.queue)
    if queue is None or not queue.is_paused:
        return (), None
    return (QueueResumed(command.queue, now, command.by, command.reason),), None


def decide_policy(state: State, command: SetPolicy, now: int) -> Decision[None]:
    queue = state.queues.get(command.queue)
    if queue is not None and queue.policy == command.policy:
        return (), None
    return (QueuePolicySet(command.queue, now, command.by, command.reason, command.policy),), None


def apply_paused(state: State, event: QueuePaused) -> None:
    state.queue(event.queue).is_paused = True
    record(state, Verb.PAUSE, event.queue, event)


def apply_resumed(state: State, event: QueueResumed) -> None:
    state.queue(event.queue).is_paused = False
    record(state, Verb.RESUME, event.queue, event)


def apply_policy(state: State, event: QueuePolicySet) -> None:
    state.queue(event.queue).policy = event.policy
    record(state, Verb.SET_POLICY, event.queue, event)
