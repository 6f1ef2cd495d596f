"""Limits in a user's words: `Limit`, how many may run at a time, and `Rate`, how many may start in a period.

The names and keys of a job's limits are computed when it is enqueued and travel with it; the numbers do not. A worker
declares them when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from leasemill.api.argument_keys import KeyOf, key_of, key_text
from leasemill.api.arguments import Arguments
from leasemill.api.policy import Duration, is_whole, microseconds
from leasemill.errors import Invalid
from leasemill.kernel.bounds import LIMITS, check_text
from leasemill.kernel.model import LimitTerms, LimitUse
from leasemill.kernel.verbs.limits import check_declared_name, check_terms, merged

LimitBy: TypeAlias = str | Callable[..., object]
"""The name of the parameter whose value is the key, or a function of parameters that computes it. None: not limited."""

EXAMPLE: Final = "write limit=Limit(5), limit=Rate(100, per=60), or a list of them"


@dataclass(frozen=True, slots=True)
class Limit:
    """Allows at most `places` jobs at a time, across all workers.

    `by`: count for each value of this parameter. `name`: kinds that use the same name share its places; by default the
    limit belongs to its kind.
    """

    places: int
    by: LimitBy | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.places) or self.places < 1:
            raise Invalid(f"Limit({self.places!r}): write how many may run at a time, 1 or more")
        _check_name_and_by("Limit", self.name, self.by)
        check_terms(self.name or "Limit", self.terms())

    def terms(self) -> LimitTerms:
        return LimitTerms(places=self.places)


@dataclass(frozen=True, slots=True)
class Rate:
    """Allows at most `rate` starts in `per` seconds, across all workers: `Rate(100, per=60)` is one every 0.6 s.

    `burst`: how many may start at once after a quiet time; in any `per` seconds there are at most `rate + burst - 1`.
    `by` and `name`: as for `Limit`.
    """

    rate: int
    per: Duration
    burst: int = 1
    by: LimitBy | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.rate) or self.rate < 1:
            raise Invalid(f"Rate({self.rate!r}, ...): write how many may start in `per` seconds, 1 or more")
        if not is_whole(self.burst) or self.burst < 1:
            raise Invalid(f"Rate(burst={self.burst!r}): write how many may start at once, 1 or more")
        _check_name_and_by("Rate", self.name, self.by)
        check_terms(self.name or "Rate", self.terms())

    def terms(self) -> LimitTerms:
        return LimitTerms(rate=self.rate, per_us=microseconds("Rate(per)", self.per, least_us=1), burst=self.burst)


AnyLimit: TypeAlias = Limit | Rate


class KindLimits:
    """The limits of one kind: which of them a job is under, and what a worker declares."""

    __slots__ = ("_keys", "_kind", "terms")

    def __init__(self, kind: str, limits: Iterable[AnyLimit], arguments: Arguments) -> None:
        self._kind = kind
        self._keys: dict[tuple[str, object], KeyOf | None] = {}
        self.terms: dict[str, LimitTerms] = {}
        for one in limits:
            name = _name_of(kind, one)
            self.terms[name] = together(name, self.terms.get(name), one.terms())
            check = partial(_check_parameters, name, arguments)
            self._keys[name, one.by] = None if one.by is None else key_of(one.by, check)
        if len(self._keys) > LIMITS:
            raise Invalid(f"{kind} has {len(self._keys)} limits; a job is under at most {LIMITS}")

    def of(self, values: dict[str, Any]) -> tuple[LimitUse, ...]:
        """The limits that a job with these arguments is under."""
        uses: list[LimitUse] = []
        for (name, _), compute in self._keys.items():
            if compute is None:
                uses.append(LimitUse(name))
                continue
            key = key_text(f"the key of limit {name!r}", compute(values))
            if key is not None:
                check_text(f"the key of limit {name!r}", key)
                uses.append(LimitUse(name, key))
        return tuple(uses)


def limits_of(kind: str, given: AnyLimit | Iterable[AnyLimit] | None, arguments: Arguments) -> KindLimits | None:
    """Return the limits that `@app.job(limit=...)` declares."""
    if given is None:
        return None
    limits: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for one in limits:
        if not isinstance(one, Limit | Rate):
            raise Invalid(f"limit of {kind} is {one!r}: {EXAMPLE}")
    return KindLimits(kind, limits, arguments) if limits else None


def declared_terms(kinds: Mapping[str, KindLimits | None]) -> dict[str, LimitTerms]:
    """Return all limits of an app by name; refused if two kinds give one name different numbers."""
    terms: dict[str, LimitTerms] = {}
    for limits in kinds.values():
        for name, one in () if limits is None else limits.terms.items():
            terms[name] = together(name, terms.get(name), one)
    return terms


def together(name: str, first: LimitTerms | None, second: LimitTerms) -> LimitTerms:
    """The places of one declaration and the rate of another may have one name; the same twice must be the same."""
    both = merged(second, first)
    if first is not None and merged(first, second) != both:
        raise Invalid(
            f"limit {name!r} is declared with different numbers: declare it once, for example "
            f"SHARED = Limit(5, name={name!r}), and use it wherever it is needed; or give one of them another name"
        )
    return both


def _name_of(kind: str, limit: AnyLimit) -> str:
    if limit.name is not None:
        return limit.name
    if limit.by is None:
        return kind
    by = limit.by if isinstance(limit.by, str) else getattr(limit.by, "__name__", "")
    if not by.isidentifier():
        raise Invalid(f"{kind}: a limit by a function needs a name, for example Limit(2, by=..., name='{kind}-tenant')")
    name = f"{kind}:{by}"
    check_declared_name(name)
    return name


def _check_name_and_by(what: str, name: str | None, by: object) -> None:
    if name is not None:
        check_declared_name(name)
    if by is not None and not isinstance(by, str) and not callable(by):
        raise Invalid(f"{what}(by={by!r}): write the name of a parameter, or a function of parameters")


def _check_parameters(name: str, arguments: Arguments, names: list[str]) -> None:
    missing = [one for one in names if one not in arguments.names]
    if missing:
        raise Invalid(
            f"limit {name!r} of {arguments.name}: {missing[0]!r} is not one of its parameters "
            f"({', '.join(arguments.names)}): `by` names the parameter whose value is the key"
        )
