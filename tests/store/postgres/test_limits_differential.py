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
from leasemill.kernel.model import LIVE
from leasemill.testing.rules import rule
from tests.crash.walk_limits import LimitWalk
from tests.store.postgres.test_differential import DRIVERS, SEEDS, Driver, Pair, walk


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
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_grants_under_limits_as_the_kernel_does(
    seed: int,
    driver: Driver,
    postgres_url: str,
    schema: str,
    admin: psycopg.Connection[Any],
) -> None:
    source = random.Random(seed)
    with driver(postgres_url) as open_store, closing(LimitPair(open_store, schema, admin)) as pair:
        walk(pair, LimitWalk(source, hands_over=True), source, f"SEED={seed}", check_every=25)
