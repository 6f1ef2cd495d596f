"""A process of the version before rules, on a folder of this one: it shares what it knows, and refuses the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, Order
from leasemill.store.factory import open_store
from leasemill.testing.rules import rule
from tests.lab.older import RULED, OlderProcess


@pytest.fixture
def older(tmp_path: Path) -> Iterator[OlderProcess]:
    process = OlderProcess(tmp_path / "older")
    yield process
    process.end()


@rule("W16")
@pytest.mark.parametrize("ruled", RULED)
def test_a_folder_is_shared_until_a_rule_is_used_and_then_refused(
    tmp_path: Path, older: OlderProcess, ruled: str
) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    opening = f"from leasemill import open_store; store = open_store({url!r})"
    claiming = "print([lease.job.id for lease in store.claim('old', ['mail'], 5)])"
    with open_store(url) as store:
        store.enqueue([JobSpec("plain", "mail", "send")])
        assert older.does(f"{opening}; print(__import__('leasemill').__file__)").startswith(str(tmp_path / "older"))
        assert older.does(claiming) == "['plain']"
        job_id = RULED[ruled](store)
        refused = older.does(claiming)
        assert refused.startswith("Broken: ")
        assert "format 2, this Leasemill reads 1" in refused
        again = older.does(opening + "; store.totals()")
        assert again.startswith("Broken: ")
        assert "format 2, this Leasemill reads 1" in again
        assert "upgrade" in again
        assert [lease.job.id for lease in store.claim("new", ["mail"], 5)] == [job_id]


@rule("W16", "O12")
def test_a_folder_is_shared_until_a_worker_is_ordered_to_do_something(tmp_path: Path, older: OlderProcess) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    opening = f"from leasemill import open_store; store = open_store({url!r})"
    claiming = "print([lease.job.id for lease in store.claim('old', ['mail'], 1)])"
    with open_store(url) as store:
        store.enqueue([JobSpec("plain", "mail", "send"), JobSpec("other", "mail", "send")])
        assert older.does(f"{opening}; {claiming}") == "['plain']"
        store.run(c.OrderWorker("worker", "instance", Order.QUIET, "ada", "a leak"))
        for tried in (claiming, opening + "; store.totals()"):
            refused = older.does(tried)
            assert refused.startswith("Broken: ")
            assert "format 4, this Leasemill reads 1" in refused
            assert "upgrade" in refused
        assert [lease.job.id for lease in store.claim("new", ["mail"], 5)] == ["other"]
