"""I5: what was settled at claim holds, whichever version of Leasemill reads it, and with whatever defaults."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, Policy, Terms
from leasemill.store.postgres.rows.values import NOT_WRITTEN, terms_numbers
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import claim
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule

LATER = Terms(max_retries=1, lease_ttl_us=60 * SECOND, timeout_us=180 * SECOND, backoff_base_us=7, backoff_cap_us=7)


@pytest.fixture
def later_release(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From here on claims are those of a release with other defaults."""

    def upgrade() -> None:
        monkeypatch.setattr("leasemill.kernel.transitions.retry.DEFAULTS", LATER)
        monkeypatch.setattr(claim, "DEFAULT_TERMS", terms_numbers(LATER))

    return upgrade


@rule("I5")
def test_terms_that_are_not_written_are_these_numbers() -> None:
    """A change here would change leases and executions that were written before."""
    assert terms_numbers(NOT_WRITTEN) == [3, 30_000_000, 90_000_000, 5, 500_000, 30_000_000, 0]


@rule("I5", "L9", "F1")
def test_leases_without_terms_are_extended_fail_and_end_by_the_terms_that_are_not_written(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any], later_release: Any
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        store.enqueue([JobSpec(one, "q", "k") for one in ("ended", "extended", "failed")])
        ended, extended, failed = store.claim("w", ["q"], 3)
        assert admin.execute(f"select distinct terms from {schema}.leases".encode()).fetchall() == [(None,)]
        later_release()
        clock.advance(s=10)
        assert store.extend([c.LeaseRef("extended", extended.token)]) == [
            c.Extended("extended", clock.now() + NOT_WRITTEN.lease_ttl_us)
        ]
        assert store.nack([c.NackReport("failed", failed.token, "broke", jitter=0.5)]) == [
            c.Nacked("failed", JobState.READY, 1, clock.now() + NOT_WRITTEN.backoff_base_us // 2)
        ]
        assert store.ack([c.AckReport("ended", ended.token)]) == [c.Acked("ended")]
        job = store.job("ended")
        assert job is not None
        assert job.executions[-1].terms == NOT_WRITTEN


@rule("I5")
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, None),
        (Policy(max_retries=3), None),
        (Policy(max_retries=4), [4, 30_000_000, 90_000_000, 5, 500_000, 30_000_000, 0]),
    ],
)
def test_terms_are_written_with_leases_and_executions_unless_they_are_the_usual_ones(
    postgres_url: str,
    schema: str,
    admin: psycopg.Connection[Any],
    policy: Policy | None,
    expected: list[int] | None,
) -> None:
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec(one, "q", "k", policy=policy) for one in ("ended", "failed", "released", "held")])
        ended, failed, released, _ = store.claim("w", ["q"], 4)
        store.ack([c.AckReport("ended", ended.token)])
        store.nack([c.NackReport("failed", failed.token, "broke", jitter=0.5)])
        store.release([c.ReleaseReport("released", released.token)])
        for table in ("leases", "executions"):
            written = admin.execute(f"select distinct terms from {schema}.{table}".encode()).fetchall()
            assert written == [(expected,)]


@rule("I5")
def test_a_release_with_other_defaults_leaves_live_leases_and_ended_executions_as_they_were(
    postgres_url: str, later_release: Any
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        store.enqueue([JobSpec(one, "q", "k") for one in ("ended", "extended", "failed")])
        ended, extended, failed = store.claim("w", ["q"], 3)
        store.ack([c.AckReport("ended", ended.token)])
        later_release()
        clock.advance(s=10)
        for job_id in ("ended", "extended", "failed"):
            job = store.job(job_id)
            assert job is not None
            assert job.executions[-1].terms == ended.terms == Terms()
        assert store.extend([c.LeaseRef("extended", extended.token)]) == [
            c.Extended("extended", clock.now() + Terms().lease_ttl_us)
        ]
        assert store.nack([c.NackReport("failed", failed.token, "broke", jitter=0.5)]) == [
            c.Nacked("failed", JobState.READY, 1, clock.now() + Terms().backoff_base_us // 2)
        ]


@rule("I5")
@pytest.mark.parametrize("policy", [None, Policy(max_expirations=2)])
def test_a_claim_of_a_release_with_other_defaults_writes_them_for_older_ones_to_read(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any], later_release: Any, policy: Policy | None
) -> None:
    with PostgresStore(postgres_url, clock=ManualClock()) as store:
        later_release()
        store.enqueue([JobSpec("new", "q", "k", policy=policy)])
        (lease,) = store.claim("w", ["q"], 1)
        assert (lease.terms.max_retries, lease.terms.lease_ttl_us) == (LATER.max_retries, LATER.lease_ttl_us)
        assert (lease.terms.timeout_us, lease.terms.backoff_cap_us) == (LATER.timeout_us, LATER.backoff_cap_us)
        written = admin.execute(f"select terms from {schema}.leases".encode()).fetchone()
        assert written == (terms_numbers(lease.terms),)


@rule("I5")
def test_an_acquire_of_a_release_with_other_defaults_settles_them(postgres_url: str, later_release: Any) -> None:
    with PostgresStore(postgres_url, clock=ManualClock()) as store:
        (first,) = store.acquire([c.AcquireRequest("offsets", "a", 1, "w", "token-1")])
        assert isinstance(first, c.Acquired)
        store.ack([c.AckReport(first.lease.job.id, first.lease.token)])
        later_release()
        (second,) = store.acquire([c.AcquireRequest("offsets", "a", 2, "w", "token-2")])
        assert isinstance(second, c.Acquired)
        assert (first.lease.terms.max_retries, second.lease.terms.max_retries) == (3, LATER.max_retries)
