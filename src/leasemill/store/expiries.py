"""Whom to notify of leases that expired: whichever command of this process recorded the expiry, nobody is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from leasemill.kernel.commands import Expiration
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.state import State
from leasemill.kernel.verbs.expire import expirations

ExpiryListener: TypeAlias = Callable[[Sequence[Expiration]], None]


class Expiries:
    """The listeners of one store. With none of them, watching costs nothing."""

    def __init__(self) -> None:
        self.listeners: tuple[ExpiryListener, ...] = ()

    def listen(self, listener: ExpiryListener) -> None:
        self.listeners = (*self.listeners, listener)

    def forget(self, listener: ExpiryListener) -> None:
        self.listeners = tuple(one for one in self.listeners if one != listener)

    def found(self, state: State, events: Sequence[AnyEvent]) -> list[Expiration]:
        """The expiries among events that were just applied to this state."""
        return expirations(state, events) if self.listeners else []

    def notify(self, expired: Sequence[Expiration]) -> None:
        """Called when they are durable, in whatever thread recorded them."""
        if expired:
            for listener in self.listeners:
                listener(expired)
