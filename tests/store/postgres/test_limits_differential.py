"""PostgreSQL and the kernel alone under limits, side by side: the same grants along a random walk, one by one.

As test_differential, with jobs under limits and operators that change them. What a queue's oldest job is, and for how
long nothing is due, PostgreSQL knows as far as claims have looked: of the latter, whether it is now is compared.
"""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.model import LIVE, SECOND, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.kernel.state import State
from leasemill.testing.rules import rule
from tests.crash.walk import QUEUES, Walk
from tests.store.postgres.test_differential import SEEDS, Pair, walk

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
    def __init__(self, source: random.Random) -> None:
        super().__init__(source)
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


def compared(answer: Any) -> Any:
    """What both know for certain."""
    match answer:
        case c.QueueView():
            return replace(answer, oldest_available_at=None)
        case c.LimitView():
            return answer.name, answer.terms, answer.held, answer.waiting, sorted(answer.holders), answer.opens_at
        case list() | tuple():
            return [compared(one) for one in answer]
        case _:
            return answer


class LimitPair(Pair):
    def ask(self, command: c.Command[Any], again: str, *, by_block: bool = False) -> None:
        now = self.clock.now()
        match command:
            case c.DueIn():
                is_due = [due == 0 for due in (self.store.run(command), self.model.answer(command, now))]
                assert is_due[0] == is_due[1], again
            case c.ListQueues() | c.GetLimit():
                assert compared(self.store.run(command)) == compared(self.model.answer(command, now)), again
            case c.ListLimits():
                assert in_use(self.store.run(command)) == in_use(self.model.answer(command, now)), again
            case _:
                super().ask(command, again, by_block=by_block)

    def compare_rows(self, again: str) -> None:
        self.learn(again)
        page = c.ListJobs(c.JobFilter(), 1_000)
        jobs, kernel = self.store.run(page).jobs, self._answer(page).jobs
        states = [(job.spec.id, job.state, job.attempt, job.available_at) for job in jobs]
        assert states == [(job.spec.id, job.state, job.attempt, job.available_at) for job in kernel], again
        self.ask(c.ListQueues(100), again)
        self.check_places(again)

    def check_places(self, again: str) -> None:
        """T1: a live lease holds a place of each limit it names, and nothing else does."""
        live = sum(
            len(job.spec.rules.limits)
            for job in self.model.state.jobs.values()
            if job.spec.rules is not None and job.executions and job.executions[-1].status in LIVE
        )
        held = sum(view.held for view in self.store.limits() if not view.name.startswith("queue:"))
        assert held == live, again


def in_use(views: Any) -> Any:
    return [compared(view) for view in views if view.held or view.waiting or view.record.declared or view.record.set]


@rule("T1", "T2", "T3", "T4", "T6", "T9", "T10", "T11", "T13", "T14")
@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_grants_under_limits_as_the_kernel_does(
    seed: int, postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    source, pair = random.Random(seed), LimitPair(postgres_url, schema, admin)
    with closing(pair):
        walk(pair, LimitWalk(source), source, f"SEED={seed}", check_every=25)
