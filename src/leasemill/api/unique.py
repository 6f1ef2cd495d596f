"""Unique jobs in a user's words: `Unique`, one at a time for a key; `Debounce` and `Throttle`, for frequent calls.

A key is computed when a job is enqueued, and travels with it: other code never computes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from leasemill.api.argument_keys import KeyOf, key_of
from leasemill.api.arguments import Arguments
from leasemill.api.policy import Duration, microseconds
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_text
from leasemill.kernel.model import SECOND, UniqueKey, UniqueUntil

UniqueBy: TypeAlias = str | Sequence[str] | Callable[..., object]
"""The name of a parameter, a list of names, or a function of parameters; by default all arguments. A function that
returns None makes a call that is not unique."""

EXAMPLE: Final = 'write unique=True, Unique(by="url"), Debounce(by="page", wait=5, at_most=60) or Throttle(per=3600)'
_encode = msgspec.json.Encoder(order="deterministic").encode
_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """While a job with the same arguments is unfinished, further calls make no other and return its handle.

    `by`: which arguments (default: all). `until`: "ended", or "started": one may wait while another runs. `keep`:
    hold the key for at least this long after the enqueue, even if the job has ended.
    """

    by: UniqueBy | None = None
    until: Literal["ended", "started"] = "ended"
    keep: Duration | None = None

    def __post_init__(self) -> None:
        if self.until not in ("ended", "started"):
            raise Invalid(f"Unique(until={self.until!r}): write 'ended' or 'started'")
        self.key("checked")

    def key(self, key: str) -> UniqueKey:
        keep_us = 0 if self.keep is None else microseconds("Unique(keep=...)", self.keep)
        return UniqueKey(key, UniqueUntil(self.until), keep_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """Run once calls have stopped for `wait`, with the arguments of the last one, but within `at_most` of the first.

    `by`: calls that agree in these arguments belong together (default: all of them).
    """

    wait: Duration
    at_most: Duration
    by: UniqueBy | None = None

    def __post_init__(self) -> None:
        if self.at_most_us <= self.wait_us:
            raise Invalid(
                f"Debounce(wait={self.wait_us / SECOND:g}, at_most={self.at_most_us / SECOND:g}): "
                "at_most must be more than wait, or no call could put the job off"
            )

    @property
    def wait_us(self) -> int:
        return microseconds("Debounce(wait=...)", self.wait, least_us=1)

    @property
    def at_most_us(self) -> int:
        return microseconds("Debounce(at_most=...)", self.at_most, least_us=1)

    def key(self, key: str) -> UniqueKey:
        return UniqueKey(key, UniqueUntil.STARTED, at_most_us=self.at_most_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """The first call makes a job; other calls within `per` of it are merged with that job.

    `trailing`: one more job when the time is over, with the arguments of the last call. `by`: as for `Debounce`.
    """

    per: Duration
    by: UniqueBy | None = None
    trailing: bool = False

    def __post_init__(self) -> None:
        self.key("checked")

    def key(self, key: str) -> UniqueKey:
        per_us = microseconds("Throttle(per=...)", self.per, least_us=1)
        return UniqueKey(key, UniqueUntil.STARTED, per_us, is_trailing=self.trailing)


AnyUnique: TypeAlias = Unique | Debounce | Throttle


class KindUnique:
    """The keys of one kind's jobs: how they are computed, and what they mean."""

    def __init__(self, kind: str, rule: AnyUnique, arguments: Arguments) -> None:
        self._kind = kind
        self.rule = rule
        self._template = rule.key("of a call")
        self._arguments = arguments
        self._names: tuple[str, ...] | None = None
        self._function: KeyOf | None = None
        match rule.by:
            case None:
                pass
            case str(name):
                self._names = self._checked([name])
            case function if callable(function):
                self._function = key_of(function, self._checked)
            case names:
                self._names = self._checked(list(names))

    @property
    def is_by_all(self) -> bool:
        """The key is computed from every argument."""
        return self.rule.by is None

    def _checked(self, names: list[str]) -> tuple[str, ...]:
        known = self._arguments.names
        missing = [name for name in names if name not in known]
        if missing or not names:
            what = f"{missing[0]!r} is not one of its parameters" if missing else "no parameter is named"
            raise Invalid(f"unique of {self._kind}: {what} ({', '.join(known)}): name some of them in by=...")
        return tuple(sorted(set(names)))

    def of(self, payload: bytes, values: dict[str, Any]) -> UniqueKey | None:
        """U7: the kind and a digest of the chosen arguments, as they are in the payload; None: not unique."""
        if self._function is not None:
            chosen = self._function(values)
            if chosen is None:
                return None
            try:
                content = _encode(chosen)
            except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
                raise Invalid(f"unique of {self._kind}: the key {chosen!r} is not JSON: {error}") from None
        else:
            names = self._arguments.names if self._names is None else self._names
            for name in names:
                values[name]  # of a result that is not there yet no key can be computed
            sent = _arguments(payload)
            if self._names is not None:
                sent = {name: sent[name] for name in names if name in sent}
            content = _encode(sent)
        return replace(self._template, key=f"{self._kind}:{blake2b(content, digest_size=16).hexdigest()}")


def unique_rule(kind: str, rule: AnyUnique | bool | None, arguments: Arguments) -> KindUnique | None:
    """The rule of a declaration."""
    if rule is None or rule is False:
        return None
    given = Unique() if rule is True else rule
    if not isinstance(given, Unique | Debounce | Throttle):
        raise Invalid(f"unique of {kind} is {rule!r}: {EXAMPLE}; a key of your own belongs in .options(unique=...)")
    return KindUnique(kind, given, arguments)


def unique_key(
    rule: KindUnique | None, own_key: str | None, payload: bytes, values: dict[str, Any]
) -> UniqueKey | None:
    """The key of one call: computed, or the caller's own under the same rule."""
    if own_key is None:
        return None if rule is None else rule.of(payload, values)
    return (Unique() if rule is None else rule.rule).key(own_key)


def check_own_key(key: str) -> str:
    if not isinstance(key, str):
        raise Invalid(f'unique is {key!r} here; write the key itself, for example .options(unique="crm:42")')
    check_text("unique key", key)
    return key


def delay_of(rule: KindUnique | None, unique: UniqueKey | None, delay_us: int, run_at: int | None) -> int:
    """A debounced job waits as its rule says."""
    if unique is None or rule is None or not isinstance(rule.rule, Debounce):
        return delay_us
    if delay_us or run_at is not None:
        raise Invalid("the start time of a debounced job follows from its rule: leave out delay and run_at")
    return rule.rule.wait_us
