"""Texts are stored as they were given, whatever encoding the environment or the URL names for other programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from leasemill import App
from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.admin import migrate
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs.enqueue import SHARED_JOBS
from leasemill.testing.rules import rule
from tests.store.postgres.conftest import with_option
from tests.worker.support import until, working

PAYLOAD = '{"name": "é €"}'


@rule("I4")
@pytest.mark.parametrize("count", [1, 2, SHARED_JOBS + 1], ids=["one", "some", "many"])
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


@pytest.fixture
def latin(server_url: str, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """A database that has not every character."""
    name = f"leasemill_latin_{os.getpid()}"
    admin.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0".encode())
    yield with_option(server_url.replace("@/postgres", f"@/{name}"), "auto_migrate=1")
    admin.execute(f"drop database {name} with (force)".encode())


def test_a_database_that_cannot_store_every_text_gets_no_tables(latin: str) -> None:
    with pytest.raises(Refused, match=r"has the encoding LATIN1.*create one with encoding UTF8"):
        PostgresStore(latin)


@rule("I4")
async def test_where_it_has_them_a_text_that_it_cannot_store_is_refused_and_ends_no_worker(
    latin: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(migrate, "ENCODINGS", {"LATIN1"})
    with App(latin) as app:

        @app.job(retry=0)
        async def work(text: str) -> str:
            if text == "fails":
                raise ValueError("a \N{RIGHTWARDS ARROW} b")
            return text

        with pytest.raises(Refused, match=r"cannot store every text .*UTF8"):
            work.enqueue("a \N{RIGHTWARDS ARROW} b")
        async with working(app):
            await work.aenqueue("fails")
            await until(lambda: "a report was refused, the lease will expire" in caplog.text)
            assert await (await work.aenqueue("é")).aresult(30) == "é"
