"""`Retry`: how often a failed job is tried again, how long it waits before, and after which errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from leasemill.api.policy import Duration, check_backoff, is_whole, microseconds
from leasemill.errors import Invalid
from leasemill.kernel.model import Policy

ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
"""A class of errors or a tuple of them, as in `except`."""

RetryPreset: TypeAlias = Literal["default", "patient"]


def _check_types(what: str, types: object) -> None:
    for one in types if isinstance(types, tuple) else (() if types is None else (types,)):
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise Invalid(f"Retry({what}=...): {one!r} is not a class of errors; write one, or a tuple of them")


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of times a failed job is retried, and the bounds of the random wait before each retry (F1, F2).

    The wait before retry n (from 0) is random(0, min(base · 2^n, cap)). What is left out is taken from the app, the
    queue or the defaults: 3 retries, base 0.5 s, cap 30 s. `on`: only these errors are retried. `never_on`: these are
    not. An error that is not retried fails the job at once. A timeout is a TimeoutError; an ExceptionGroup is retried
    if each error in it is.
    """

    max: int | None = None
    base: Duration | None = None
    cap: Duration | None = None
    on: ErrorTypes | None = None
    never_on: ErrorTypes | None = None

    def __post_init__(self) -> None:
        if self.max is not None and not is_whole(self.max):
            raise Invalid(f"Retry(max={self.max!r}): write a whole number of retries, 0 for none")
        if self.max is not None and not 0 <= self.max <= 1_000:
            raise Invalid(f"Retry(max={self.max}): retries must be from 0 to 1000")
        _check_types("on", self.on)
        _check_types("never_on", self.never_on)
        if self.on == ():
            raise Invalid("Retry(on=()): it names no error; leave it out to retry all, or write retry=0")
        check_backoff("Retry", self.policy())

    def policy(self) -> Policy:
        return Policy(
            max_retries=self.max,
            backoff_base_us=None if self.base is None else microseconds("Retry(base=...)", self.base),
            backoff_cap_us=None if self.cap is None else microseconds("Retry(cap=...)", self.cap),
        )

    def allows(self, error: BaseException) -> bool:
        """Return True if a handler that raised this is run again, if retries are left."""
        if isinstance(error, self.never_on or ()):
            return False
        if isinstance(error, self.on or ()):
            return True
        if isinstance(error, BaseExceptionGroup):
            return all(map(self.allows, error.exceptions))
        return self.on is None

    def over(self, other: Retry) -> Retry:
        """This one, with what it leaves out taken from the other."""
        return Retry(
            other.max if self.max is None else self.max,
            other.base if self.base is None else self.base,
            other.cap if self.cap is None else self.cap,
            other.on if self.on is None else self.on,
            other.never_on if self.never_on is None else self.never_on,
        )


RetryChoice: TypeAlias = Retry | int | RetryPreset
"""A `Retry`, how many retries, or the name of a preset."""

RETRIES: Final[dict[RetryPreset, Retry]] = {
    "default": Retry(max=3, base=0.5, cap=30),
    "patient": Retry(max=36, base=1, cap=7_200),
}
"""Retries by name. `patient` goes on for a day on average: 13 waits that double up to two hours, then 23 of those."""


def retry_of(choice: RetryChoice | None) -> Retry:
    """Return the `Retry` that a choice means; None leaves everything out."""
    match choice:
        case None:
            return Retry()
        case Retry():
            return choice
        case str():
            if choice not in RETRIES:
                raise Invalid(
                    f"retry {choice!r} is not one of {', '.join(RETRIES)}; write one of them, a number, or Retry(...)"
                )
            return RETRIES[choice]
        case _:
            return Retry(max=choice)
