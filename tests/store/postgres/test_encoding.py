"""Texts are stored as they were given, whatever encoding the environment or the URL names for other programs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs.many import LEAST
from leasemill.testing.rules import rule

PAYLOAD = '{"name": "é €"}'


@rule("I4")
@pytest.mark.parametrize("count", [1, 2, LEAST], ids=["one", "some", "many"])
@pytest.mark.parametrize("where", ["environment", "url"])
def test_a_job_is_stored_and_read_as_it_was_given(
    postgres_url: str,
    schema: str,
    admin: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    where: str,
) -> None:
    if where == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    url = f"{postgres_url}&client_encoding=LATIN1" if where == "url" else postgres_url
    jobs = [JobSpec(f"jób-{number}", "q", "k", PAYLOAD.encode()) for number in range(count)]
    with PostgresStore(url) as store:
        store.enqueue([JobSpec("first", "other", "k")])
        assert store.run(c.Enqueue(jobs, are_new=True)) == [c.Enqueued(job.id) for job in jobs]
        assert [lease.job for lease in store.claim("w", ["q"], count)] == jobs
    stored = admin.execute(f"select id, payload from {schema}.jobs where queue = 'q' order by no".encode()).fetchall()
    assert stored == [(job.id, PAYLOAD) for job in jobs]
