"""One job, some jobs and many: what is written is the same, shared with other calls or not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, Policy
from leasemill.store.postgres.admission import ADMITTED_AT_ONCE
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs.enqueue import SHARED_JOBS
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule

NOW = ManualClock().now()
MANY = SHARED_JOBS + 1
"""So many in one call share their transaction with no other."""
SHAPES = {
    "plain": JobSpec("", "q", "k", b'{"name":"\xc3\xa9"}'),
    "urgent": JobSpec("", "q", "k", priority=9),
    "later": JobSpec("", "q", "k", delay_us=5 * SECOND),
    "at a time": JobSpec("", "other", "k", run_at=NOW + 7 * SECOND),
    "at a time that is past": JobSpec("", "q", "other", run_at=NOW - 7 * SECOND),
    "with headers": JobSpec("", "q", "k", headers={"trace": "ü", "tenant": "t"}),
}


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    """It knows how its queues are used."""
    with PostgresStore(postgres_url, clock=ManualClock()) as store:
        store.enqueue([JobSpec("first", "q", "k"), JobSpec("second", "other", "k")])
        store.claim("nobody", ["q", "other"], 2)
        yield store


def written(admin: psycopg.Connection[Any], schema: str, specs: list[JobSpec]) -> list[Any]:
    """What the tables have of each of them, but for ids and numbers."""
    ids = [spec.id for spec in specs]
    rows = admin.execute(
        f"""select j.created_at, j.priority, j.queue, j.kind, j.payload, j.lane, j.lane_offset, j.run_at, j.delay_us,
                j.policy, j.headers, j.rules, r.available_at, r.rank, r.queue, r.no, r.attempt, r.retries, r.expirations
            from {schema}.jobs as j join {schema}.ready as r on r.seq = j.no
            where j.id = any (%s) order by array_position(%s, j.id)""".encode(),
        [ids, ids],
    ).fetchall()
    assert len(rows) == len(specs)
    return rows


@rule("E1", "E3", "C2")
@pytest.mark.parametrize("shape", SHAPES)
def test_one_job_some_and_many_are_written_alike(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str, shape: str
) -> None:
    numbers = count()

    def specs(some: int) -> list[JobSpec]:
        return [replace(SHAPES[shape], id=f"job-{next(numbers)}") for _ in range(some)]

    one, some, many = specs(1), specs(2), specs(MANY)
    for batch in (one, some, many):
        assert store.run(c.Enqueue(batch, are_new=True)) == [c.Enqueued(spec.id) for spec in batch]
    (expected,) = {repr(row) for row in written(admin, schema, some)}
    assert {repr(row) for row in written(admin, schema, one + many)} == {expected}
    for spec in (one[0], many[-1]):
        job = store.job(spec.id)
        assert job is not None
        assert job.spec == spec


@rule("C2")
def test_many_are_claimed_in_the_order_in_which_they_were_given(store: PostgresStore) -> None:
    specs = [JobSpec(f"{MANY - number}", "q", "k") for number in range(MANY)]
    store.run(c.Enqueue(specs, are_new=True))
    assert [lease.job.id for lease in store.claim("w", ["q"], MANY)] == [spec.id for spec in specs]


@rule("E2", "E4")
@pytest.mark.parametrize("some", [1, MANY])
def test_an_id_that_is_known_nevertheless_is_a_duplicate_or_a_conflict(store: PostgresStore, some: int) -> None:
    store.enqueue([JobSpec("0", "q", "k")])
    specs = [JobSpec(f"{number}", "q", "k") for number in range(some)]
    outcomes = store.run(c.Enqueue(specs, are_new=True))
    assert outcomes == [c.Duplicate("0"), *(c.Enqueued(spec.id) for spec in specs[1:])]
    assert store.run(c.Enqueue([JobSpec("0", "q", "k", b'{"a":1}'), *specs[1:]], are_new=True))[0] == c.Conflict("0")


@rule("I7")
def test_many_for_a_queue_that_is_not_known_yet_make_it_known(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as store:
        specs = [JobSpec(f"{number}", "new", "k") for number in range(MANY)]
        assert store.run(c.Enqueue(specs, are_new=True)) == [c.Enqueued(spec.id) for spec in specs]
        assert len(store.claim("w", ["new"], MANY)) == MANY


def test_many_that_are_not_plain_are_inserted(store: PostgresStore) -> None:
    specs = [JobSpec(f"{number}", "q", "k", policy=Policy(max_retries=1)) for number in range(MANY)]
    specs.append(JobSpec("in a lane", "q", "k", lane="lane"))
    store.run(c.Enqueue(specs, are_new=True))
    claimed = {lease.job.id: lease for lease in store.claim("w", ["q"], MANY + 1)}
    assert {spec.id for spec in specs} == claimed.keys()
    assert claimed["0"].terms.max_retries == 1


@pytest.mark.parametrize("some", [1, MANY])
def test_who_listens_is_notified_of_the_queues(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str, some: int
) -> None:
    admin.execute(f"listen leasemill_{schema}".encode())
    try:
        store.run(c.Enqueue([JobSpec(f"{number}", "q", "k") for number in range(some)], are_new=True))
        store.run(c.Enqueue([JobSpec(f"later {number}", "q", "k", delay_us=1) for number in range(some)], are_new=True))
        assert [one.payload for one in admin.notifies(timeout=30, stop_after=2)] == ["q", ""]
    finally:
        admin.execute("unlisten *")


@rule("N2")
def test_all_jobs_of_a_large_call_are_in_their_lanes_when_it_returns(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    """A worker would admit the rest before each claim, and claim little."""
    count = 2 * ADMITTED_AT_ONCE + 1
    store.enqueue([JobSpec(f"job-{number}", "q", "k", lane=f"lane-{number}") for number in range(count)])
    row = admin.execute(
        f"select (select count(*) from {schema}.arrivals), (select count(*) from {schema}.lanes)".encode()
    ).fetchone()
    assert row == (0, count)
