"""F1 twice: the back-off of the kernel and that of nack.sql are one formula."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, Policy
from leasemill.kernel.transitions.retry import backoff_us
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule

LONGEST_US = 3_660 * 86_400 * SECOND
RETRIES = 61
POLICIES = {
    "defaults": Policy(max_retries=1_000),
    "the smallest base below the longest cap": Policy(max_retries=1_000, backoff_base_us=1, backoff_cap_us=LONGEST_US),
    "an odd base": Policy(max_retries=1_000, backoff_base_us=333_333, backoff_cap_us=LONGEST_US),
    "none": Policy(max_retries=1_000, backoff_base_us=0, backoff_cap_us=0),
}


@rule("F1")
@pytest.mark.parametrize("jitter", [0.0, 0.3, 0.9999999999999999])
@pytest.mark.parametrize("name", POLICIES)
def test_after_any_number_of_retries_the_back_off_is_the_kernels(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any], name: str, jitter: float
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        store.enqueue([JobSpec(f"j{retries:02}", "q", "k", policy=POLICIES[name]) for retries in range(RETRIES)])
        first = admin.execute(f"select min(seq) from {schema}.ready".encode()).fetchone()
        admin.execute(f"update {schema}.ready set retries = nullif(seq - %s, 0)".encode(), first)
        leases = store.claim("w", ["q"], RETRIES)
        assert [lease.retries for lease in leases] == list(range(RETRIES))
        outcomes = store.nack([c.NackReport(lease.job.id, lease.token, "broke", jitter) for lease in leases])
        for lease, outcome in zip(leases, outcomes, strict=True):
            assert isinstance(outcome, c.Nacked)
            assert outcome.available_at == clock.now() + backoff_us(lease.terms, lease.retries, jitter)
