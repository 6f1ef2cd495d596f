"""A process of the version before rules, on a schema of this one: it works on what it knows, and refuses the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasemill.kernel.model import JobSpec, LimitUse, Rules
from leasemill.store.opening import open_store
from leasemill.store.postgres.admin.migrate import applied, migrate, migrations
from tests.lab.older import OlderProcess
from tests.store.postgres.conftest import with_option

RULED = JobSpec("ruled", "mail", "send", rules=Rules(limits=(LimitUse("stripe"),)))


@pytest.fixture
def older(tmp_path: Path) -> Iterator[OlderProcess]:
    process = OlderProcess(tmp_path / "older")
    yield process
    process.end()


@pytest.fixture
def own_url(server_url: str, admin: psycopg.Connection[Any]) -> Iterator[str]:
    """A schema of its own: once a rule was used in it, there is no way back."""
    name = f"leasemill_older_{os.getpid()}"
    admin.execute(f"drop schema if exists {name} cascade".encode())
    migrate(admin, name)
    yield with_option(server_url, f"schema={name}")
    admin.execute(f"drop schema if exists {name} cascade".encode())


def test_a_schema_is_shared_until_a_rule_is_used_and_then_refused(
    own_url: str, older: OlderProcess, admin: psycopg.Connection[Any]
) -> None:
    opening = f"from leasemill import open_store; store = open_store({own_url!r})"
    claiming = "print([lease.job.id for lease in store.claim('old', ['mail', 'bulk'], 5)])"
    latest = migrations()[-1].version
    with open_store(own_url) as store:
        store.enqueue([JobSpec("plain", "mail", "send")])
        assert older.does(opening) == ""
        assert older.does(claiming) == "['plain']"
        store.enqueue([RULED, JobSpec("beside it", "mail", "send"), JobSpec("elsewhere", "bulk", "send")])
        assert older.does(claiming) == "['elsewhere']"  # none of a queue whose rules it does not know
        refused = older.does(opening + "; store.totals()")
        assert refused.startswith("Refused: ")
        assert f"is at version {latest}, this Leasemill needs 7" in refused
        taken = {lease.job.id for lease in store.claim("new", ["mail"], 5)}
        assert taken == {"ruled", "beside it"}
    schema = own_url.rpartition("schema=")[2]
    before = applied(admin, schema)
    assert migrate(admin, schema) == []
    assert applied(admin, schema) == before
    with open_store(own_url) as store:
        assert store.job("ruled") is not None
