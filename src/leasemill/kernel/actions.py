"""The audit trail: who did what, and why (O8). Shared by the operator's verbs."""

from __future__ import annotations

from typing import Final, Protocol

from leasemill.kernel.bounds import check_text
from leasemill.kernel.model import Action, Verb
from leasemill.kernel.state import State

REASON_LENGTH: Final = 1_000
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
    state.actions.append(Action(event.at, verb, event.by, target, event.reason))
