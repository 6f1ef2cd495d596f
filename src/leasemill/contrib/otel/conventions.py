"""The names of the messaging conventions, version 1.44, and of what they have no name for. No name of a span contains a
kind or an id: there must be few of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal, TypeAlias

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
MESSAGE_ID: Final = "messaging.message.id"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
ERROR_TYPE: Final = "error.type"
INSTANCE_ID: Final = "service.instance.id"

KIND: Final = "leasemill.job.kind"
ATTEMPT: Final = "leasemill.attempt"
EXPIRATIONS: Final = "leasemill.expirations"
FENCE: Final = "leasemill.fence"
LANE: Final = "leasemill.lane"
OUTCOME: Final = "leasemill.outcome"
REASON: Final = "leasemill.reason"

LOST: Final = "leasemill.lost"
"""The event of a span whose lease was lost meanwhile."""
REFUSED: Final = "leasemill.refused"
"""The event of a report, or a commit, that the store refused because the lease was not held any more."""

Operation: TypeAlias = Literal["send", "receive", "process", "commit", "settle"]

_TYPES: Final[dict[Operation, str]] = {
    "send": "send",
    "receive": "receive",
    "process": "process",
    "commit": "settle",
    "settle": "settle",
}


class Named:
    """The attributes that all spans and measurements of an operation on a queue have in common. Not to be changed: it
    is shared."""

    __slots__ = ("attributes", "measured", "span")

    def __init__(self, operation: Operation, queue: str | None) -> None:
        self.span = operation if queue is None else f"{operation} {queue}"
        self.attributes: dict[str, str] = {
            SYSTEM: "leasemill",
            OPERATION: operation,
            OPERATION_TYPE: _TYPES[operation],
        }
        if queue is not None:
            self.attributes[DESTINATION] = queue
        self.measured = {name: value for name, value in self.attributes.items() if name != OPERATION_TYPE}
        """The attributes of metrics of one operation, whose conventions have no type; each attribute costs a
        measurement more."""


@lru_cache(1_024)
def named(operation: Operation, queue: str | None) -> Named:
    """`queue`: None for a batch from several."""
    return Named(operation, queue)


def common(values: Iterable[str]) -> str | None:
    """Return the value that all of these share; None if they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def error_type(of: type[BaseException]) -> str:
    """The full name of a class, as `exception.type` of a recorded exception has it; ours as it is imported."""
    module = of.__module__.partition(".")[0] if of.__module__.startswith("leasemill.") else of.__module__
    return of.__qualname__ if module == "builtins" else f"{module}.{of.__qualname__}"
