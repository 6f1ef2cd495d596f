"""An ack with a claim under limits on PostgreSQL: places go from what ends to what is granted, and to no other job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import QUEUE_LIMIT, JobSpec, JobState, LimitTerms, LimitUse, Policy, Rules
from leasemill.store.postgres.admin.check import check as check_tables
from leasemill.store.postgres.admin.check import rebuild
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule
from tests.store.postgres.test_handover import LONG_S, handed

OWN = QUEUE_LIMIT + "q"
AT_ONCE = Policy(backoff_base_us=0, backoff_cap_us=0)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url) as store:
        yield store


def set_places(store: PostgresStore, name: str, places: int) -> None:
    store.set_limit(name, LimitTerms(places=places), by="ada", reason="because")


def enqueue(store: PostgresStore, *jobs: str, **fields: Any) -> None:
    """`id` or `id:customer`."""
    named = [job.partition(":") for job in jobs]
    store.enqueue(
        [
            JobSpec(
                job_id, "q", "k", rules=Rules(limits=(LimitUse("customer", customer),)) if customer else None, **fields
            )
            for job_id, _, customer in named
        ]
    )


def ids(leases: list[c.Lease]) -> list[str]:
    return [lease.job.id for lease in leases]


def leased(store: PostgresStore) -> int:
    return store.totals().counts[JobState.LEASED]


@rule("C8", "T1", "T3")
def test_places_are_handed_over_and_never_exceeded(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    set_places(store, OWN, 2)
    enqueue(store, *(f"j{number}" for number in range(20)))
    begun = store.claim("w", ["q"], 10)
    assert ids(begun) == ["j0", "j1"]

    async def every(leases: list[c.Lease]) -> list[str]:
        ran: list[str] = []
        for _ in range(9):
            _, leases = await handed(store, *leases)
            ran += ids(leases)
            assert leased(store) == 2
        return ran

    assert asyncio.run(every(begun)) == [f"j{number}" for number in range(2, 20)]
    assert check_tables(admin, schema) == []


@rule("C8", "T1", "T2")
def test_one_place_that_is_free_is_one_grant(store: PostgresStore) -> None:
    set_places(store, OWN, 3)
    enqueue(store, *(f"j{number}" for number in range(6)))
    first, *others = store.claim("w", ["q"], 10)
    assert ids([first, *others]) == ["j0", "j1", "j2"]
    assert ids(asyncio.run(handed(store, first))[1]) == ["j3"]
    assert leased(store) == 3
    assert store.claim("w", ["q"], 10) == []


@rule("C8", "T4", "T5")
def test_a_job_whose_key_is_full_is_passed_over(store: PostgresStore) -> None:
    set_places(store, "customer", 1)
    enqueue(store, "a1:ann", "b1:bob", "a2:ann", "a3:ann", "c1:cy", "free")
    first, second = store.claim("w", ["q"], 2)
    assert ids([first, second]) == ["a1", "b1"]
    outcomes, granted = asyncio.run(handed(store, second))
    assert outcomes == [c.Acked("b1")]
    assert ids(granted) == ["c1", "free"]
    assert ids(asyncio.run(handed(store, first))[1]) == ["a2"], "the place of a job that ended is free"
    assert store.claim("w", ["q"], 10) == []


@rule("T1", "T11")
def test_a_limit_with_a_rate_grants_its_burst(store: PostgresStore) -> None:
    store.set_limit("customer", LimitTerms(rate=2, per_us=3_600_000_000, burst=2), by="ada", reason="because")
    enqueue(store, "a1:ann", "a2:ann", "a3:ann")
    store.claim("w", ["none"], 1)
    assert ids(store.claim("w", ["q"], 1)) == ["a1"]
    assert ids(store.claim("w", ["q"], 10)) == ["a2"]


@rule("T1", "T3")
def test_a_job_that_is_claimed_again_holds_one_place(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    """The row of its earlier place is still there: nobody has claimed since it came back."""
    set_places(store, "customer", 1)
    enqueue(store, "a1:ann", policy=AT_ONCE)
    for attempt in (1, 2, 3):
        (lease,) = store.claim("w", ["q"], 1)
        assert lease.attempt == attempt
        assert store.run(c.GetLimit("customer", key="ann")).held == 1  # type: ignore[union-attr]
        store.run(c.Nack([c.NackReport("a1", lease.token, "broke", jitter=0.0)]))
    rows = admin.execute(f"select count(*) from {schema}.places").fetchone()
    assert rows == (1,)
    assert check_tables(admin, schema) == []


@rule("T6")
def test_fewer_places_than_are_held_grant_nothing(store: PostgresStore) -> None:
    set_places(store, OWN, 3)
    enqueue(store, *(f"j{number}" for number in range(6)))
    first, second, _third = store.claim("w", ["q"], 10)
    set_places(store, OWN, 1)
    assert asyncio.run(handed(store, first))[1] == []
    assert asyncio.run(handed(store, second))[1] == []


@rule("C5", "C8", "T1")
def test_a_repeated_claim_gets_what_it_was_granted(store: PostgresStore) -> None:
    set_places(store, OWN, 2)
    enqueue(store, *(f"j{number}" for number in range(6)))
    first, _ = store.claim("w", ["q"], 10)
    *tokens, request = store.entropy.tokens(11)
    both = c.Ack([c.AckReport("j0", first.token)]), c.Claim("w", ["q"], 10, tokens, request)
    outcomes, granted = asyncio.run(store.ack_and_claim(*both))
    again, repeated = asyncio.run(store.ack_and_claim(*both))
    assert (outcomes, again) == ([c.Acked("j0")], [c.Acked("j0", is_repeat=True)])
    assert granted == repeated
    assert ids(granted or []) == ["j2"]


@rule("T3", "C8")
def test_an_ack_does_not_wait_for_limits_that_others_have_locked(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    set_places(store, OWN, 1)
    enqueue(store, "j0", "j1")
    (lease,) = store.claim("w", ["q"], 10)
    name = psycopg.sql.Identifier(schema).as_string(None) + f".limits {OWN}"
    with ThreadPoolExecutor(1) as pool:
        with admin.transaction():
            admin.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
            handing = pool.submit(asyncio.run, handed(store, lease))
            with closing(store.watch_end("j0")) as ended:
                while (job := store.job("j0")) is not None and job.state is not JobState.SUCCEEDED:
                    assert ended.wait(LONG_S), "the ack waits"
            assert not handing.done(), "the claim waits for the limit"
        assert ids(handing.result(LONG_S)[1]) == ["j1"]


@rule("C8", "L6")
def test_nothing_is_known_of_what_a_failed_commit_would_have_granted(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    """The rows of a claim are read before its COMMIT: when that fails, the claim is repeated."""
    set_places(store, OWN, 1)
    enqueue(store, "j0", "j1", "j2")
    (lease,) = store.claim("w", ["q"], 10)
    _, (lease,) = asyncio.run(handed(store, lease))
    admin.execute(f"create sequence {schema}.commits")
    admin.execute(f"""create function {schema}.fail_once() returns trigger language plpgsql as $$ begin
        if nextval('{schema}.commits') = 1 then raise 'not this time' using errcode = '40001'; end if;
        return null; end $$""")
    admin.execute(f"""create constraint trigger fail_once after insert on {schema}.requests
        deferrable initially deferred for each row execute function {schema}.fail_once()""")
    try:
        outcomes, granted = asyncio.run(handed(store, lease))
    finally:
        admin.execute(f"drop function {schema}.fail_once cascade")
        admin.execute(f"drop sequence {schema}.commits")
    assert (outcomes, ids(granted)) == ([c.Acked("j1")], ["j2"])
    assert {one.job_id for one in store._known.leases.values()} == {"j2"}
    assert check_tables(admin, schema) == []


@rule("T1")
def test_a_queues_own_limit_is_counted_from_its_leases(
    store: PostgresStore, admin: psycopg.Connection[Any], schema: str
) -> None:
    """Those that were granted before it had the limit too; a lease that is not counted is found, and mended."""
    enqueue(store, "j0", "j1", "j2", "j3")
    store.claim("w", ["q"], 2)
    set_places(store, OWN, 3)
    assert ids(store.claim("w", ["q"], 10)) == ["j2"]
    assert admin.execute(f"select count(*) from {schema}.places").fetchone() == (0,)
    admin.execute(
        f"update {schema}.leases set is_limited = null where fence = (select max(fence) from {schema}.leases)"
    )
    assert check_tables(admin, schema) == [f"leased under limit {OWN}, but holds no place of it: job j2"]
    rebuild(admin, schema)
    assert check_tables(admin, schema) == []
    assert store.claim("w", ["q"], 10) == []
