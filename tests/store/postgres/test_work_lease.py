"""`WorkLease` on PostgreSQL: several at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from leasemill.api.worklease import AcquireStatus, SucceedStatus, WorkLease
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule
from tests.worklease.racing import race


@rule("N12", "N1")
def test_on_postgresql_every_offset_is_acquired_and_succeeded_once_whoever_races(postgres_url: str) -> None:
    race(lambda: PostgresStore(postgres_url), callers=4)


@rule("N10", "N11")
def test_an_offset_that_lines_up_as_the_one_before_it_ends_is_never_stranded(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as one, PostgresStore(postgres_url) as other, ThreadPoolExecutor(2) as pool:
        work, late = WorkLease(one, "offsets"), WorkLease(other, "offsets")
        lease = work.try_acquire("A", 0).lease
        for offset in range(1, 150):
            assert lease is not None
            ending = pool.submit(work.succeed, "A", lease.token)
            coming = pool.submit(late.try_acquire, "A", offset)
            ended, came = ending.result(), coming.result()
            assert came.status in (AcquireStatus.ACQUIRED, AcquireStatus.ENQUEUED)
            if ended.status is SucceedStatus.NEXT_HINT:
                assert (came.status, ended.next_offset) == (AcquireStatus.ENQUEUED, offset)
            else:
                assert came.status is AcquireStatus.ACQUIRED, "it came after all"
            lease = came.lease or work.try_acquire("A", offset).lease
        view = one.lane("offsets", "A")
        assert view is not None
        assert view.finished == ((0, 148),)
