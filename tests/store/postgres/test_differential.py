"""PostgreSQL and the kernel alone, side by side: the same answers and the same rows along a random walk.

Commands are sent by threads, and by an event loop as in a worker. The same clock, the same tokens. Sequence numbers and
fences need not be dense: they are compared by the kernel's number of the same job and execution. Answers are compared
at every step, all rows at every few. A walk is decided by its seed, which a failure names; SEED=… runs that one alone,
SEEDS=… that many, STEPS=… a longer one, ROWS_EVERY=1 compares all rows at every step. `make walk` is the long run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, TypeAlias

import msgspec
import psycopg
import pytest

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.invariants import violations
from leasemill.kernel.model import SECOND, Action, Job, JobSpec, Policy
from leasemill.kernel.state import State
from leasemill.store.postgres.admin.check import check as check_tables
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.walk import Model, Walk, asked
from tests.store.postgres.loop_driven import loop_driven, running_loop

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(int(os.environ.get("SEEDS", "3"))))
STEPS = int(os.environ.get("STEPS", "300"))
ROWS_EVERY = int(os.environ.get("ROWS_EVERY", "10"))
PAGE = 1_000
OpenStore: TypeAlias = Callable[[ManualClock], PostgresStore]
WORN_RETRIES = 45
WORN = Policy(max_retries=100, backoff_base_us=1, backoff_cap_us=3_660 * 86_400 * SECOND)


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

    def translated(self, value: Any) -> Any:
        """The same value in the kernel's numbers."""
        match value:
            case c.Totals():
                return msgspec.structs.replace(value, fence=0, seq=0)
            case msgspec.Struct():
                fields = {name: self._field(name, getattr(value, name)) for name in value.__struct_fields__}
                return msgspec.structs.replace(value, **fields)
            case list() | tuple():
                return type(value)([self.translated(one) for one in value])
            case _:
                return value

    def _field(self, name: str, value: Any) -> Any:
        if value is None or name == "counts":
            return value
        if name in {"seq", "after"}:
            return self.seqs[value]
        if name == "fence":
            return self.fences[value]
        return self.translated(value)


class Same(Numbers):
    """The kernel's own values: only what is not compared is left out."""

    def _field(self, name: str, value: Any) -> Any:
        return value if name in {"seq", "after", "fence", "counts"} else self.translated(value)


def snapshot(run: Any) -> tuple[tuple[Job, ...], list[Any], list[Any], list[Action], list[c.GroupView]]:
    jobs: tuple[Job, ...] = run(c.ListJobs(c.JobFilter(), PAGE)).jobs
    lanes = [run(c.GetLane(queue, lane)) for queue, lane in (("q", "a"), ("q", "b"), ("r", "a"), ("offsets", "x"))]
    return jobs, run(c.ListQueues(PAGE)), lanes, run(c.ListActions(PAGE)), run(c.ListGroups(PAGE))


class Pair:
    """The store and the kernel, asked the same."""

    def __init__(self, open_store: OpenStore, schema: str, admin: psycopg.Connection[Any]) -> None:
        self.clock, self.model, self.numbers = ManualClock(), Model(), Numbers()
        self._open_store, self._schema, self._admin = open_store, schema, admin
        self.store = open_store(self.clock)

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.store = self._open_store(self.clock)

    def ask(self, command: c.Command[Any], again: str, *, by_block: bool = False) -> None:
        lease = held(self.model.state, command, self.clock.now()) if by_block else None
        if self.model.state.leases.first(1, self.clock.now()):
            self.store._known.expiry_position.look_again()  # L7: the kernel's claims look every time
        expected = self.model.answer(command, self.clock.now())
        if lease is not None and isinstance(command, c.Commit):
            given = committed_by_block(self.store, command, lease)
        else:
            given = asked(self.store, command)
        try:
            mapped = self.numbers.translated(given)
        except KeyError:  # numbers that are new
            self.learn(again, leased_ids(given))
            mapped = self.numbers.translated(given)
        assert mapped == Same().translated(expected), again

    def learn(self, again: str, ids: tuple[str, ...] = ()) -> None:
        """The numbers of these jobs, or of all."""
        page = c.ListJobs(c.JobFilter(job_ids=ids or None), PAGE)
        jobs, kernel = (run(page).jobs for run in (self.store.run, self._answer))
        assert [job.spec.id for job in jobs] == [job.spec.id for job in kernel], again
        self.numbers.learn(jobs, kernel)

    def compare_rows(self, again: str) -> None:
        self.learn(again)
        assert self.numbers.translated(snapshot(self.store.run)) == Same().translated(snapshot(self._answer)), again

    def check(self, again: str) -> None:
        self.compare_rows(again)
        assert violations(self.model.state) == [], again
        assert check_tables(self._admin, self._schema) == [], again

    def _answer(self, command: c.Command[Any]) -> Any:
        return self.model.answer(command, self.clock.now())


def leased_ids(answer: Any) -> tuple[str, ...]:
    if isinstance(answer, list) and any(isinstance(one, list) for one in answer):  # of an ack with a claim
        return tuple(job_id for one in answer for job_id in leased_ids(one))
    leases = [getattr(one, "lease", one) for one in answer] if isinstance(answer, list) else []
    return tuple(lease.job.id for lease in leases if isinstance(lease, c.Lease))


def held(state: State, command: c.Command[Any], now: int) -> c.Lease | None:
    """The lease of a commit that will happen, and whose follow-ups need no admission."""
    if not isinstance(command, c.Commit) or any(one.lane is not None for one in command.followups):
        return None
    job = state.jobs.get(command.job_id)
    one = job.executions[-1] if job is not None and job.executions else None
    if job is None or one is None or one.token != command.token or one.committed_at is not None:
        return None
    if one.finished_at is not None or now >= one.expires_at:
        return None
    return c.Lease(
        job.spec,
        one.token,
        one.attempt,
        one.fence,
        one.worker,
        one.leased_at,
        one.expires_at,
        one.terms,
        job.retries,
        job.expirations,
        job.created_at,
    )


def committed_by_block(store: PostgresStore, command: c.Commit, lease: c.Lease) -> object:
    """As `ctx.commit()` does, with a transaction of the user's."""
    block = store.block(lease, 10.0)
    try:
        return block.begin() or block.commit(command)
    except LeasemillError as error:
        block.roll_back()
        return type(error), str(error)


def wear(pair: Pair, again: str) -> None:
    """A job that has failed more often than its back-off can double."""
    pair.ask(c.Enqueue([JobSpec("worn", "q", "k", policy=WORN)]), again)
    for failures in range(WORN_RETRIES):
        pair.ask(c.Claim("w1", ["q"], 1, [f"worn-{failures}"], None, {}), again)
        delay_us = None if failures == WORN_RETRIES - 1 else 0
        report = c.NackReport("worn", f"worn-{failures}", "it broke", jitter=0.5, delay_us=delay_us)
        pair.ask(c.Nack([report]), again)


def walk(pair: Pair, commands: Walk, source: random.Random, again: str, *, check_every: int = 50) -> None:
    for step in range(STEPS):
        command = commands.next(pair.model.state)
        where = f"step {step}, {command}; again: {again}"
        pair.ask(command, where, by_block=source.random() < 0.5)
        if step % ROWS_EVERY == 0:
            pair.compare_rows(where)
        if step % check_every == 0:
            pair.check(where)
        if source.random() < 0.03:
            pair.reopen()
        pair.clock.advance(us=source.choice((0, 1, 1_000, 400_000, 3_000_000)))
    pair.check(f"the end; again: {again}")


@contextmanager
def threads(url: str) -> Iterator[OpenStore]:
    yield lambda clock: PostgresStore(url, clock=clock)


@contextmanager
def the_loop(url: str) -> Iterator[OpenStore]:
    with running_loop() as loop:
        yield lambda clock: loop_driven(url, clock, loop)


Driver: TypeAlias = Callable[[str], AbstractContextManager[OpenStore]]
DRIVERS = (threads, the_loop)


@rule("E6", "C2", "C8", "F1", "L6", "X2", "X3", "N3", "O6", "U1", "U2", "U3", "U4", "U5", "U8", "U10")
@pytest.mark.parametrize("uniqueness", [0.0, 0.5])
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_answers_as_the_kernel_alone_does(
    seed: int,
    driver: Driver,
    uniqueness: float,
    postgres_url: str,
    schema: str,
    admin: psycopg.Connection[Any],
) -> None:
    source = random.Random(seed)
    again = f"SEED={seed} make test PYTEST_ARGS='-k postgres_answers'"
    with driver(postgres_url) as open_store, closing(Pair(open_store, schema, admin)) as pair:
        wear(pair, again)
        walk(pair, Walk(source, uniqueness=uniqueness, hands_over=True), source, again)
