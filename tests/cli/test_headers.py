"""Headers on the command line, on a folder of jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.testing.rules import rule

TASKS = """
from leasemill import App

app = App(retry=0)

@app.job
async def fails() -> None:
    raise ValueError("no")
"""
WHY = ("--reason", "a test")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "header_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("header_tasks", None)


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def document(*arguments: str) -> Any:
    done = leasemill(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def enqueued(job_id: str, *headers: str) -> str:
    given = [part for header in headers for part in ("--header", header)]
    done = leasemill("enqueue", "header_tasks:app", "fails", "--id", job_id, *given)
    assert done.exit_code == 0, done.output
    return job_id


@rule("O11")
def test_headers_are_given_shown_and_select_jobs_in_every_command() -> None:
    enqueued("acme", "tenant=acme", "query=a=b")
    enqueued("globex", "tenant=globex")
    enqueued("plain")
    (listed,) = document("jobs", "list", "--header", "tenant=acme", "--header", "query=a=b")["jobs"]
    assert (listed["id"], listed["headers"]) == ("acme", {"tenant": "acme", "query": "a=b"})
    assert document("jobs", "show", "plain")["headers"] == {}
    assert document("jobs", "show", "acme")["headers"] == listed["headers"]
    assert document("jobs", "explain", "acme")["headers"] == listed["headers"]
    assert "tenant=acme, query=a=b" in leasemill("jobs", "show", "acme").stdout
    assert leasemill("worker", "header_tasks:app", "--drain").exit_code == 0
    (failures,) = document("jobs", "failures", "--header", "tenant=globex")
    assert (failures["count"], failures["example"]) == (1, "globex")
    assert document("jobs", "redrive", "--header", "tenant=acme", *WHY)["job_ids"] == ["acme"]
    assert document("jobs", "cancel", "--header", "tenant=acme", *WHY)["job_ids"] == ["acme"]
    assert document("jobs", "purge", "--header", "tenant=acme", *WHY)["job_ids"] == ["acme"]
    assert [job["id"] for job in document("jobs", "list", "--oldest-first")["jobs"]] == ["globex", "plain"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["tenant"], "write it as --header tenant=VALUE"),
        (["a b=x"], "header 'a b' is not a name"),
        (["tenant=a", "tenant=b"], "--header tenant is given twice"),
    ],
)
def test_a_header_that_no_job_can_have_is_refused(given: list[str], expected: str) -> None:
    done = leasemill("jobs", "list", *[part for header in given for part in ("--header", header)])
    assert done.exit_code != 0
    assert expected in done.output
