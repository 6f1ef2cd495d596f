"""Unique keys on the command line, on a folder of jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.kernel import commands as c
from leasemill.store.factory import open_store
from leasemill.testing.rules import rule

TASKS = """
from leasemill import App, Debounce, Unique

app = App()

@app.job(unique=Unique(by="url", keep=3600))
async def fetch(url: str, why: str = "") -> None: ...

@app.job
async def plain() -> None: ...

@app.job(unique=Debounce(by="url", wait=60, at_most=600))
async def index(url: str, version: int) -> None: ...
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "unique_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("unique_tasks", None)


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def enqueued(kind: str, *options: str) -> str:
    done = leasemill("enqueue", "unique_tasks:app", kind, *options)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@rule("U1", "U4")
def test_keys_are_given_listed_explained_and_hold_back_a_redrive() -> None:
    first = enqueued("plain", "--unique", "crm:42")
    assert enqueued("plain", "--unique", "crm:42") == first
    assert enqueued("plain") != first
    listed = json.loads(leasemill("jobs", "list", "--unique", "crm:42", "--json").stdout)["jobs"]
    assert [(job["id"], job["unique"]) for job in listed] == [(first, "crm:42")]
    shown = leasemill("jobs", "explain", first).stdout
    assert "It holds unique key 'crm:42' until it has ended: calls with that key make no job." in shown
    assert "crm:42" in leasemill("jobs", "show", first).stdout
    with open_store("file:.leasemill") as store:
        for lease in store.claim("w", ["default"], 2):
            store.nack([c.NackReport(lease.job.id, lease.token, "broke", is_permanent=True)])
    second = enqueued("plain", "--unique", "crm:42")
    assert f"It is a twin of '{second}', which holds its unique key" in leasemill("jobs", "explain", first).stdout
    refused = leasemill("jobs", "redrive", "--id", first, "--reason", "again")
    assert refused.exit_code == 1
    assert f"{first} was skipped: job {second} holds its unique key" in refused.stderr
    swept = leasemill("jobs", "redrive", "--all", "--reason", "again")
    assert swept.exit_code == 0
    assert f"{first} was skipped: job {second} holds its unique key" in swept.stderr


@rule("U3", "U9")
def test_kept_keys_and_replaced_arguments_are_explained() -> None:
    kept = enqueued("fetch", "--args", '{"url": "a"}')
    assert enqueued("fetch", "--args", '{"url": "a", "why": "again"}') == kept
    assert "until it has ended and 2" in leasemill("jobs", "explain", kept).stdout
    waits = enqueued("index", "--args", '{"url": "a", "version": 1}')
    assert enqueued("index", "--args", '{"url": "a", "version": 2}') == waits
    shown = leasemill("jobs", "explain", waits).stdout
    assert "until it has been claimed" in shown
    assert "Its arguments were replaced once." in shown
