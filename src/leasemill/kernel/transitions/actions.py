"""The audit trail: who did what, and why (O8). Shared by the operator's verbs.

What is done to many jobs is one action that grows: one redrive of a million jobs must not push everything else out of
the trail. PostgreSQL adds to an action of an earlier command by itself, in `exact/save.py`, by the same rule.
"""

from __future__ import annotations

from typing import Final, Protocol

from leasemill.kernel.bounds import check_text
from leasemill.kernel.model import SECOND, Action, Verb
from leasemill.kernel.state import State
from leasemill.kernel.transitions.formats import require_verb

REASON_LENGTH: Final = 1_000
JOINED_WITHIN_US: Final = 60 * SECOND
JOINED_AMONG: Final = 10
"""The number of latest actions that may be joined, so that acts under way at the same time stay one action each."""
TARGETS_KEPT: Final = 20
DECLARED: Final = "declared in code"
"""The reason of what workers set when they start."""


class _Signed(Protocol):
    @property
    def by(self) -> str: ...
    @property
    def reason(self) -> str: ...


class _Recorded(_Signed, Protocol):
    @property
    def at(self) -> int: ...


def check_operator(command: _Signed) -> None:
    check_text("the operator's name", command.by)
    check_text("the reason", command.reason, REASON_LENGTH)


def record(state: State, verb: Verb, target: str, event: _Recorded) -> None:
    require_verb(state, verb)
    state.actions.append(Action(event.at, verb, event.by, target, event.reason))


def record_job(state: State, verb: Verb, job_id: str, event: _Recorded) -> None:
    """An action on a job: it joins the latest of the same verb, person and reason, which is the newest then."""
    actions = state.actions
    for position in range(len(actions) - 1, max(-1, len(actions) - 1 - JOINED_AMONG), -1):
        one = actions[position]
        if (one.verb, one.by, one.reason) == (verb, event.by, event.reason):
            if event.at - one.at > JOINED_WITHIN_US:
                break
            others = one.others if len(one.others) >= TARGETS_KEPT - 1 else (*one.others, job_id)
            del actions[position]
            actions.append(Action(event.at, verb, one.by, one.target, one.reason, one.count + 1, one.began_at, others))
            return
    record(state, verb, job_id, event)
