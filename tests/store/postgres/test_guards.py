"""The guards of statements that a store's memory of its own leases, or its early look, usually hides.

A store that has not claimed a lease itself does not know that it is of a lane; a user's commit is guarded by its last
statement alone, whatever happened since its block began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, LossReason
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule

LEASE_S = 30


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(postgres_url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    with PostgresStore(postgres_url, clock=clock) as made:
        yield made


def reason(outcome: object) -> LossReason:
    assert isinstance(outcome, c.Lost)
    return outcome.reason


@rule("N4")
def test_the_ack_of_a_lanes_head_by_a_store_that_did_not_claim_it_lets_the_lane_go_on(
    store: PostgresStore, postgres_url: str, clock: ManualClock, schema: str, admin: psycopg.Connection[Any]
) -> None:
    store.enqueue([JobSpec("head", "q", "k", lane="a"), JobSpec("next", "q", "k", lane="a")])
    (lease,) = store.claim("w", ["q"], 1)
    with PostgresStore(postgres_url, clock=clock) as other:
        assert other.ack([c.AckReport("head", lease.token)]) == [c.Acked("head", c.LaneHint("next", None))]
    assert [one.job.id for one in store.claim("w", ["q"], 1)] == ["next"]
    assert check(admin, schema) == []


@rule("L2", "I2")
def test_another_token_does_not_end_a_lanes_head(store: PostgresStore) -> None:
    store.enqueue([JobSpec("head", "q", "k", lane="a")])
    store.claim("w", ["q"], 1)
    assert reason(*store.ack([c.AckReport("head", "another")])) is LossReason.UNKNOWN
    job = store.job("head")
    assert job is not None
    assert job.state is JobState.LEASED


@rule("L1", "L3")
def test_a_lanes_head_does_not_succeed_after_its_lease_has_ended(store: PostgresStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("head", "q", "k", lane="a")])
    (lease,) = store.claim("w", ["q"], 1)
    clock.advance(s=LEASE_S)
    assert reason(*store.ack([c.AckReport("head", lease.token)])) is LossReason.EXPIRED


@rule("X4", "L2")
def test_a_block_whose_job_another_has_claimed_meanwhile_does_not_commit(
    store: PostgresStore, clock: ManualClock
) -> None:
    store.enqueue([JobSpec("job", "q", "k")])
    (lease,) = store.claim("w", ["q"], 1)
    block = store.block(lease, 10.0)
    assert block.begin() is None
    clock.advance(s=LEASE_S)
    (later,) = store.claim("other", ["q"], 1)
    outcome = block.commit(c.Commit("job", lease.token))
    assert reason(outcome) is LossReason.SUPERSEDED
    assert isinstance(store.commit("job", later.token), c.Committed)


@rule("X6", "L3")
def test_a_block_whose_lease_ended_meanwhile_does_not_commit(store: PostgresStore, clock: ManualClock) -> None:
    store.enqueue([JobSpec("job", "q", "k")])
    (lease,) = store.claim("w", ["q"], 1)
    block = store.block(lease, 10.0)
    assert block.begin() is None
    clock.advance(us=LEASE_S * SECOND)
    assert reason(block.commit(c.Commit("job", lease.token))) is LossReason.EXPIRED


@rule("X4")
def test_of_two_blocks_of_one_lease_the_second_finds_the_commit_of_the_first(store: PostgresStore) -> None:
    store.enqueue([JobSpec("job", "q", "k")])
    (lease,) = store.claim("w", ["q"], 1)
    first, second = store.block(lease, 10.0), store.block(lease, 10.0)
    assert first.begin() is None
    assert second.begin() is None
    assert first.commit(c.Commit("job", lease.token, b"1")) == c.Committed("job", ())
    assert second.commit(c.Commit("job", lease.token, b"2")) == c.Committed("job", (), is_repeat=True)
    job = store.job("job")
    assert job is not None
    assert job.result == b"1"
