"""What a verb's module is made of: a command, and the tables through which `kernel.machine` finds the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import State

__all__ = ["Command"]

AnswerT = TypeVar("AnswerT", covariant=True)
OutcomeT = TypeVar("OutcomeT")


class Command(Struct, Generic[AnswerT], frozen=True):
    """A request to a store; `AnswerT` is what it returns."""


Decision: TypeAlias = tuple[tuple[AnyEvent, ...], OutcomeT]
"""The events to apply, and the outcome for the caller."""


class Do(Protocol):
    """Applies the events of a decision and returns its outcome."""

    def __call__(self, decision: Decision[OutcomeT], /) -> OutcomeT: ...


class Rules(NamedTuple):
    """How a command is checked and decided."""

    check: Callable[[Any], None]
    decide: Callable[[State, Any, int, Do], Any]


Commands: TypeAlias = dict[type, Rules]
Appliers: TypeAlias = dict[type, Callable[[State, Any], None]]
