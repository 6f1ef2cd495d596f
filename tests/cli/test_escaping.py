"""Texts that others wrote drive no terminal, begin no line of ours, and show no secret that is a header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill.api.logs import CONTROLS
from leasemill.cli import main
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, Policy
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record

HOSTILE = "\x1b[2J\x9b31m\u202e\u2028\r"
SHOWN = r"\u001b[2J\u009b31m\u202e\u2028\r"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("LEASEMILL_URL", f"file:{tmp_path / 'jobs'}")
    with open_store(f"file:{tmp_path / 'jobs'}") as opened:
        yield opened


def leasemill(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    assert all(CONTROLS.search(line) is None for line in done.output.split("\n")), repr(done.output)
    return done.output


def enqueue_hostile(store: Store, **headers: str) -> None:
    payload = json.dumps({"text": HOSTILE[1:]}, ensure_ascii=False).encode()
    store.enqueue([JobSpec("job", "mail", "send", payload=payload, headers=headers, policy=Policy(max_retries=0))])


def fail(store: Store, error: str) -> None:
    (lease,) = store.claim("worker", ["mail"], 1)
    store.nack([c.NackReport("job", lease.token, error)])


def test_a_shown_job_has_no_controls_and_no_secrets(store: Store) -> None:
    enqueue_hostile(store, note=f"a{HOSTILE}\nstate      SUCCEEDED", Authorization="Bearer 1", x_api_key="2")
    fail(store, f"ValueError: {HOSTILE}\n  File {HOSTILE}\nrefused reports")
    lines = leasemill("jobs", "show", "job").splitlines()
    (headers,) = [line for line in lines if line.startswith("headers")]
    assert f"note=a{SHOWN}\\nstate      SUCCEEDED" in headers
    assert "Authorization=(redacted)" in headers
    assert "x_api_key=(redacted)" in headers
    at = lines.index("error of attempt 1")
    assert lines[at + 1 :] == [f"  ValueError: {SHOWN}", f"    File {SHOWN}", "  refused reports"]


def test_json_has_everything_as_it_was_given(store: Store) -> None:
    enqueue_hostile(store, note=HOSTILE, cookie="1")
    found = CliRunner().invoke(main, ["jobs", "show", "job", "--json"])
    assert json.loads(found.output)["headers"] == {"note": HOSTILE, "cookie": "1"}


@pytest.mark.parametrize("command", ["list", "explain", "failures"])
def test_an_error_in_a_table_or_a_sentence_has_no_controls(store: Store, command: str) -> None:
    enqueue_hostile(store)
    fail(store, f"ValueError: {HOSTILE}")
    assert r"ValueError: \u001b[" in leasemill("jobs", command, *(["job"] if command == "explain" else []))


def test_progress_in_the_list_of_workers_has_no_controls(store: Store) -> None:
    running = [RunningJob("job", "send", 1, 2.0, 1, 2, HOSTILE)]
    record = WorkerRecord("w1", "host", 7, 0.0, 0.0, 60.0, {"mail": 1}, 1, False, running, {})
    store.presence.publish("w1", encode_record(record))
    assert f"w1 has been running send job for 2.0 s (1/2, {SHOWN})" in leasemill("workers")
