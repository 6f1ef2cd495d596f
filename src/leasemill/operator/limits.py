"""Limits in words: their numbers, and which of them keep a job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from msgspec import Struct

from leasemill.kernel.commands import LimitView
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, LimitTerms, LimitUse
from leasemill.operator.times import instant, span
from leasemill.operator.wording import counted, listed

UNITS = {SECOND: "s", 60 * SECOND: "min", 3_600 * SECOND: "h", 86_400 * SECOND: "d"}


class LimitFact(Struct, frozen=True):
    """A limit that a job is under, with its key, and how it stands."""

    use: LimitUse
    view: LimitView

    @property
    def held(self) -> int:
        if self.use.key is not None:
            return next((one.held for one in self.view.keys if one.key == self.use.key), 0)
        return self.view.held - sum(one.held for one in self.view.keys)

    @property
    def holders(self) -> Sequence[str]:
        if self.use.key is not None:
            return next((one.holders for one in self.view.keys if one.key == self.use.key), ())
        return self.view.holders

    @property
    def opens_at(self) -> int | None:
        if self.use.key is not None:
            return next((one.opens_at for one in self.view.keys if one.key == self.use.key), None)
        return self.view.opens_at

    @property
    def is_full(self) -> bool:
        places = self.view.terms.places
        return places is not None and self.held >= places


def shutting(facts: Sequence[LimitFact]) -> tuple[list[str], list[str]]:
    """Why limits keep a job that is due, and what an operator can do; nothing if they let it through."""
    full = [fact for fact in facts if fact.is_full]
    waiting = [fact for fact in facts if fact.opens_at is not None]
    sentences = [_full(fact) for fact in full] + [_not_yet(fact) for fact in waiting]
    names = dict.fromkeys(fact.view.name for fact in (*full, *waiting))
    return sentences, [f"leasemill limits show {quote(name)}" for name in names]


def _full(fact: LimitFact) -> str:
    places = counted(fact.view.terms.places or 0, "place")
    if fact.view.name.startswith(QUEUE_LIMIT):
        queue = fact.view.name.removeprefix(QUEUE_LIMIT)
        return f"It waits for a place in queue {queue!r}, whose limit is {places}: {fact.held:,} are held."
    by = ""
    if fact.holders:
        more = fact.held - len(fact.holders[:5])
        by = f" by {listed(fact.holders[:5])}" + (f" and {more:,} more" if more > 0 else "")
    return f"It waits for a place under {_named(fact.use)}: {fact.held:,} of {places} held{by}."


def _not_yet(fact: LimitFact) -> str:
    rate, opens_at = rate_of(fact.view.terms), instant(fact.opens_at)
    if rate:
        return f"The rate of {_named(fact.use)} ({rate}) allows it to start at {opens_at}."
    return f"A handler has paused {_named(fact.use)} until {opens_at}."


def _named(use: LimitUse) -> str:
    return f"limit {use.name!r}" if use.key is None else f"limit {use.name!r} for {use.key!r}"


def numbers(terms: LimitTerms) -> str:
    """`10 places, 100/min, burst 10`."""
    parts = [] if terms.places is None else [counted(terms.places, "place")]
    rate = rate_of(terms)
    return ", ".join([*parts, *([rate] if rate else [])]) or "not limited"


def rate_of(terms: LimitTerms) -> str:
    if terms.rate is None or terms.per_us is None:
        return ""
    unit = UNITS.get(terms.per_us)
    rate = f"{terms.rate:,}/{unit}" if unit else f"{terms.rate:,} in {span(terms.per_us)}"
    return rate if (terms.burst or 1) == 1 else f"{rate}, burst {terms.burst:,}"
