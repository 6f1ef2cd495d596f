"""PostgreSQL and the kernel alone, side by side: the same answers and the same rows after every step of a random walk.

The same clock, the same tokens. Sequence numbers and fences need not be dense: they are compared by the kernel's number
of the same job and execution. A walk is decided by its seed, which a failure names; SEED=… runs that one alone,
STEPS=… a longer one.
"""

from __future__ import annotations

import os
import random
from typing import Any

import msgspec
import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.invariants import violations
from leasemill.kernel.model import Action, Job
from leasemill.store.postgres.check import check as check_tables
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.walk import Model, Walk, asked

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(4))
STEPS = int(os.environ.get("STEPS", "120"))
PAGE = 1_000


class Numbers:
    """Which of the kernel's numbers each of PostgreSQL's is; they rise together."""

    def __init__(self) -> None:
        self.seqs: dict[int, int] = {}
        self.fences: dict[int, int] = {}

    def learn(self, given: tuple[Job, ...], expected: tuple[Job, ...]) -> None:
        for one, other in zip(given, expected, strict=True):
            self.seqs[one.seq] = other.seq
            for execution, twin in zip(one.executions, other.executions, strict=True):
                self.fences[execution.fence] = twin.fence
        assert [self.fences[fence] for fence in sorted(self.fences)] == sorted(self.fences.values())

    def told(self, value: Any) -> Any:
        """The same value in the kernel's numbers."""
        match value:
            case c.Totals():
                return msgspec.structs.replace(value, fence=0, seq=0)
            case msgspec.Struct():
                fields = {name: self._field(name, getattr(value, name)) for name in value.__struct_fields__}
                return msgspec.structs.replace(value, **fields)
            case list() | tuple():
                return type(value)([self.told(one) for one in value])
            case _:
                return value

    def _field(self, name: str, value: Any) -> Any:
        if value is None or name == "counts":
            return value
        if name in {"seq", "after"}:
            return self.seqs[value]
        if name == "fence":
            return self.fences[value]
        return self.told(value)


class Same(Numbers):
    """The kernel's own values: only what is not compared is left out."""

    def _field(self, name: str, value: Any) -> Any:
        return value if name in {"seq", "after", "fence", "counts"} else self.told(value)


def snapshot(run: Any) -> tuple[tuple[Job, ...], list[Any], list[Any], list[Action]]:
    jobs: tuple[Job, ...] = run(c.ListJobs(c.JobFilter(), PAGE)).jobs
    lanes = [run(c.GetLane(queue, lane)) for queue, lane in (("q", "a"), ("q", "b"), ("r", "a"), ("offsets", "x"))]
    return jobs, run(c.ListQueues(PAGE)), lanes, run(c.ListActions(PAGE))


@rule("E6", "C2", "L6", "X2", "N3", "O6")
@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_answers_as_the_kernel_alone_does(
    seed: int, postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    source, clock, model, numbers = random.Random(seed), ManualClock(), Model(), Numbers()
    commands = Walk(source)
    store = PostgresStore(postgres_url, clock=clock)
    try:
        for step in range(STEPS):
            command = commands.next(model.state)
            again = f"step {step}, {command}; again: SEED={seed} make test PYTEST_ARGS='-k postgres_answers'"
            expected = model.answer(command, clock.now())
            given = asked(store, command)
            rows = snapshot(store.run)
            kernel = snapshot(lambda it: model.answer(it, clock.now()))
            assert [job.spec.id for job in rows[0]] == [job.spec.id for job in kernel[0]], again
            numbers.learn(rows[0], kernel[0])
            assert numbers.told(given) == Same().told(expected), again
            assert numbers.told(rows) == Same().told(kernel), again
            if step % 20 == 0:
                assert violations(model.state) == [], again
                assert check_tables(admin, schema) == [], again
            if source.random() < 0.03:
                store.close()
                store = PostgresStore(postgres_url, clock=clock)
            clock.advance(us=source.choice((0, 1, 1_000, 400_000, 3_000_000)))
    finally:
        store.close()
