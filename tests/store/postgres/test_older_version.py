"""A process of the version before rules, on a schema of this one: it works on what it knows, and refuses the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, Rules, UniqueKey
from leasemill.kernel.orders import Order
from leasemill.store.opening import open_store
from leasemill.store.postgres.admin.migrate import applied, migrate, migrations
from tests.lab.older import RULED, OlderProcess
from tests.store.postgres.conftest import with_option

ACKING = "from leasemill.kernel.commands import AckReport; store.ack([AckReport(lease.job.id, lease.token)])"
BINDING = {"limits", "groups", "chains"}
"""What changes who may run a job, or what its end does: an earlier version is given no job of such a queue."""
UNSEEN = {"headers", "schedules"}
"""What any version may run without knowing of it: it is done when the job is there."""


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


def test_an_earlier_version_works_beside_orders_to_workers(own_url: str, older: OlderProcess) -> None:
    with open_store(own_url) as store:
        store.run(c.OrderWorker("worker", "instance", Order.QUIET, "ada", "a leak"))
        store.enqueue([JobSpec("plain", "mail", "send")])
        opening = f"from leasemill import open_store; store = open_store({own_url!r})"
        assert older.does(opening) == ""
        assert older.does("store.presence.publish('old', b'{}'); print(len(store.presence.records()))") == "1"
        assert older.does("print([lease.job.id for lease in store.claim('old', ['mail'], 5)])") == "['plain']"
        assert store.order("instance") is not None


@pytest.mark.parametrize("ruled", sorted(set(RULED) - UNSEEN))
def test_a_schema_is_shared_until_a_rule_is_used_and_then_refused(
    own_url: str, older: OlderProcess, admin: psycopg.Connection[Any], ruled: str
) -> None:
    opening = f"from leasemill import open_store; store = open_store({own_url!r})"
    claiming = "print([lease.job.id for lease in store.claim('old', ['mail', 'bulk'], 5)])"
    latest = migrations()[-1].version
    with open_store(own_url) as store:
        store.enqueue([JobSpec("plain", "mail", "send")])
        assert older.does(opening) == ""
        assert older.does(claiming) == "['plain']"
        job_id = RULED[ruled](store)
        store.enqueue([JobSpec("beside it", "mail", "send"), JobSpec("elsewhere", "bulk", "send")])
        ruled_ids = [job_id, "beside it"]
        assert older.does(claiming) == str([*([] if ruled in BINDING else ruled_ids), "elsewhere"])
        refused = older.does(opening + "; store.totals()")
        assert refused.startswith("Refused: ")
        assert f"is at version {latest}, this Leasemill needs 7" in refused
        taken = [lease.job.id for lease in store.claim("new", ["mail"], 5)]
        assert taken == (ruled_ids if ruled in BINDING else [])
    schema = own_url.rpartition("schema=")[2]
    before = applied(admin, schema)
    assert migrate(admin, schema) == []
    assert applied(admin, schema) == before
    with open_store(own_url) as store:
        assert store.job(job_id) is not None


@pytest.mark.parametrize("ruled", sorted(UNSEEN))
def test_an_earlier_version_runs_jobs_with_headers_and_of_schedules(
    own_url: str, older: OlderProcess, ruled: str
) -> None:
    with open_store(own_url) as store:
        job_id = RULED[ruled](store)
        before = store.job(job_id)
        assert older.does(f"from leasemill import open_store; store = open_store({own_url!r})") == ""
        assert older.does("(lease,) = store.claim('old', ['mail'], 5); print(lease.job.id)") == job_id
        assert older.does(ACKING) == ""
        after = store.job(job_id)
        assert before is not None
        assert after is not None
        assert (after.state, after.spec) == (JobState.SUCCEEDED, before.spec)


def test_an_end_that_an_earlier_version_reports_frees_a_unique_key(own_url: str, older: OlderProcess) -> None:
    opening = f"from leasemill import open_store; store = open_store({own_url!r})"
    with open_store(own_url) as store:
        assert older.does(opening) == ""
        assert RULED["unique"](store) == "ruled"
        assert older.does("(lease,) = store.claim('old', ['mail'], 5); print(lease.job.id)") == "ruled"
        again = JobSpec("again", "mail", "send", rules=Rules(unique=UniqueKey("key")))
        assert store.enqueue([again]) == [c.Merged("ruled")]
        assert older.does(ACKING) == ""
        assert store.enqueue([again]) == [c.Enqueued("again")]
