"""A process of the version before rules, on a folder of this one: it shares what it knows, and refuses the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill.kernel.model import JobSpec, LimitUse, Rules, UniqueKey
from leasemill.store.opening import open_store
from leasemill.testing.rules import rule
from tests.lab.older import OlderProcess

RULED = {
    "headers": JobSpec("ruled", "mail", "send", headers={"trace": "1"}),
    "unique": JobSpec("ruled", "mail", "send", rules=Rules(unique=UniqueKey("key"))),
    "limits": JobSpec("ruled", "mail", "send", rules=Rules(limits=(LimitUse("stripe"),))),
}


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
        store.enqueue([RULED[ruled]])
        refused = older.does(claiming)
        assert refused.startswith("Broken: ")
        assert "format 2, this Leasemill reads 1" in refused
        again = older.does(opening + "; store.totals()")
        assert again.startswith("Broken: ")
        assert "format 2, this Leasemill reads 1" in again
        assert "upgrade" in again
        assert [lease.job.id for lease in store.claim("new", ["mail"], 5)] == ["ruled"]
