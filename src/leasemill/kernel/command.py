"""The base of every verb: a command, and decisions."""

from __future__ import annotations

from typing import Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from leasemill.kernel.events import AnyEvent

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
