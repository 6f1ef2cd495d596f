"""`WorkLease` on PostgreSQL: against the document, and several at once."""

from __future__ import annotations

from itertools import count

from hypothesis import settings

from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.conformance import DurableHarness
from leasemill.testing.rules import rule
from tests.worklease.machine import compare
from tests.worklease.racing import race


@rule("N12")
def test_on_postgresql_it_does_as_the_document_says(postgres_url: str) -> None:
    queues = (f"offsets-{number}" for number in count())

    def make() -> tuple[DurableHarness, str]:
        return DurableHarness(lambda clock: PostgresStore(postgres_url, clock=clock)), next(queues)

    compare(make, settings(max_examples=settings().max_examples // 5))


@rule("N12", "N1")
def test_on_postgresql_every_offset_is_acquired_and_succeeded_once_whoever_races(postgres_url: str) -> None:
    race(lambda: PostgresStore(postgres_url), callers=4)
