"""Random walks under limits: places, keys, rates, pauses, and numbers that change while jobs wait."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.kernel.state import State
from tests.crash.walk import QUEUES, Walk

NAMES = ("stripe", "customer", "api", "queue:q", "queue:r")
USES = (
    (),
    (LimitUse("stripe"),),
    (LimitUse("customer", "ann"),),
    (LimitUse("customer", "bob"), LimitUse("stripe")),
    (LimitUse("stripe"), LimitUse("customer", "ann")),
    (LimitUse("api"),),
    (LimitUse("api"), LimitUse("customer", "bob"), LimitUse("stripe")),
)
TERMS = (
    LimitTerms(places=0),
    LimitTerms(places=1),
    LimitTerms(places=2),
    LimitTerms(places=5),
    LimitTerms(rate=1, per_us=SECOND),
    LimitTerms(rate=5, per_us=SECOND, burst=3),
    LimitTerms(2, 3, SECOND, 2),
)


class LimitWalk(Walk):
    """Jobs under limits, and operators that change them."""

    def __init__(
        self,
        source: random.Random,
        *,
        payload_bytes: tuple[int, ...] = (0, 1, 20, 200),
        uniqueness: float = 0.0,
        hands_over: bool = False,
    ) -> None:
        super().__init__(source, payload_bytes=payload_bytes, uniqueness=uniqueness, hands_over=hands_over)
        self._drawers = (
            *self._drawers,
            (16, self._claim),
            (6, self._ack),
            (6, self._set_limit),
            (2, self._clear_limit),
            (2, self._declare),
            (3, self._throttled),
            (6, self._read_limits),
        )

    def _new_job(self) -> JobSpec:
        job = super()._new_job()
        uses = self._random.choice(USES)
        return replace(job, rules=Rules(limits=uses)) if uses else job

    def _claim(self, state: State) -> c.Command[Any]:
        command = super()._claim(state)
        assert isinstance(command, c.Claim)
        queues = self._random.choice((QUEUES, QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]))
        return replace(command, queues=queues, slots=self._random.choice((None, None, None, 0, 1, 2)))

    def _set_limit(self, _state: State) -> c.Command[Any]:
        name, terms = self._random.choice(NAMES), self._random.choice(TERMS)
        if name.startswith("queue:"):
            terms = LimitTerms(places=self._random.choice((1, 3, 5, 8)))
        return c.SetLimit(name, terms, "ada", "because")

    def _clear_limit(self, _state: State) -> c.Command[Any]:
        return c.ClearLimit(self._random.choice(NAMES), "ada", "because")

    def _declare(self, _state: State) -> c.Command[Any]:
        names = self._random.sample(NAMES[:3], 2)
        return c.DeclareLimits([c.DeclaredLimit(name, self._random.choice(TERMS)) for name in names], "w1")

    def _throttled(self, state: State) -> c.Command[Any]:
        name, hold_us = self._random.choice(NAMES[:3]), self._random.choice((1_000, 500_000, 2 * SECOND))
        return c.Release([c.ReleaseReport(*self._token(state), None, None, name, hold_us)])

    def _read_limits(self, _state: State) -> c.Command[Any]:
        return self._random.choice((c.DueIn(QUEUES), c.DueIn(QUEUES[:1]), c.ListLimits(100), c.GetLimit("customer")))
