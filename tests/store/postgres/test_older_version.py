"""A process of the version before rules, on a schema of this one: it works on what it knows, and refuses the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasemill.errors import Broken
from leasemill.kernel import commands as c
from leasemill.kernel.model import ENDING_VERBS, REPORT_VERBS, JobSpec, JobState, Order, Rules, UniqueKey
from leasemill.kernel.state import DEATHS_FORMAT, KEYS_FORMAT, PLAIN_FORMAT
from leasemill.kernel.transitions.formats import VERB_FORMATS
from leasemill.store.factory import open_store
from leasemill.store.postgres.admin.migrate import applied, migrate, migrations
from leasemill.store.postgres.known import KNOWN_SINCE
from leasemill.testing.rules import rule
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


@rule("L10")
@pytest.mark.parametrize("is_committed", [False, True], ids=["running", "committed"])
def test_a_schema_is_shared_until_a_holder_is_proved_dead_and_then_refused(
    own_url: str, older: OlderProcess, admin: psycopg.Connection[Any], is_committed: bool
) -> None:
    """What an earlier process has open goes on with what it can read, and changes nothing of what it cannot."""
    opening = f"from leasemill import open_store; store = open_store({own_url!r})"
    schema = own_url.rpartition("schema=")[2]
    with open_store(own_url) as store:
        store.enqueue([JobSpec("plain", "mail", "send"), JobSpec("other", "mail", "send")])
        assert older.does(opening) == ""
        (lease,) = store.claim("new", ["mail"], 1)
        if is_committed:
            store.commit(lease.job.id, lease.token)
        assert applied(admin, schema)[0] == 1
        store.death([c.DeathReport(lease.job.id, lease.token, "exit status 137")])
        assert applied(admin, schema)[0] >= KNOWN_SINCE[DEATHS_FORMAT]
        assert applied(admin, schema)[-1] == migrations()[-1].version
        refused = older.does(opening + "; store.totals()")
        assert refused.startswith("Refused: ")
        assert f"is at version {migrations()[-1].version}, this Leasemill needs 7" in refused
        before = store.job("plain")
        assert older.does("print(store.cancel(['plain'], by='ada', reason='why'))").startswith("ValidationError: ")
        assert store.job("plain") == before
        assert older.does("(lease, *_) = store.claim('old', ['mail'], 5)[::-1]; print(lease.job.id)") == "other"
        assert older.does(ACKING) == ""
        after = store.job("other")
        assert after is not None
        assert after.state is JobState.SUCCEEDED
    assert migrate(admin, schema) == []


def test_every_verb_that_a_jobs_rows_may_hold_is_known_to_a_version_of_the_tables() -> None:
    """One that is not lets an earlier process in, which cannot read what it finds."""
    needed = {VERB_FORMATS[verb] for verb in (*ENDING_VERBS, *REPORT_VERBS)} - {PLAIN_FORMAT}
    assert set(KNOWN_SINCE) == needed | {KEYS_FORMAT}
    versions = [KNOWN_SINCE[number] for number in sorted(KNOWN_SINCE)]
    assert versions == sorted(set(versions))
    assert versions[-1] <= migrations()[-1].version


def test_the_latest_version_of_the_tables_stays_whatever_is_used(own_url: str, admin: psycopg.Connection[Any]) -> None:
    schema = own_url.rpartition("schema=")[2]
    admin.execute(f"select {schema}.use_verbs(1000)".encode())
    assert applied(admin, schema) == [migrations()[-1].version]


@pytest.mark.parametrize("column", ["ended_by", "reason", "verb"])
def test_what_a_later_version_wrote_is_refused_with_a_sentence_and_stays_as_it_is(
    own_url: str, admin: psycopg.Connection[Any], column: str
) -> None:
    """Of a verb or a reason that comes after this version, as its processes meet it that have the schema open."""
    schema = own_url.rpartition("schema=")[2]
    table = "refusals" if column == "verb" else "executions"
    with open_store(own_url) as store:
        store.enqueue([JobSpec("job", "mail", "send")])
        (lease,) = store.claim("worker", ["mail"], 1)
        store.release([c.ReleaseReport("job", lease.token, 0)])
        store.ack([c.AckReport("job", lease.token)])
        store.pause("mail", by="ada", reason="why")
        admin.execute(f"update {schema}.{table} set {column} = 'defer'".encode())
        admin.execute(f"update {schema}.actions set verb = 'defer'".encode())
        kept = admin.execute(f"select * from {schema}.{table}".encode()).fetchall()
        readings: list[Callable[[], object]] = [
            lambda: store.job("job"),
            store.jobs,
            lambda: store.cancel(["job"], by="ada", reason="why"),
            lambda: store.commit("job", "another token"),
            store.actions,
        ]
        for reading in readings:
            with pytest.raises(Broken, match=r"the tables hold what this Leasemill does not know \(.*'defer'.*upgrade"):
                reading()
        assert admin.execute(f"select * from {schema}.{table}".encode()).fetchall() == kept
        assert store.totals().counts[JobState.READY] == 1


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
