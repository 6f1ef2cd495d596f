"""What scripts read: `--json` prints one document and nothing else on stdout, with keys that do not change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from tests.cli.conftest import logging_kept

TASKS = """
from leasemill import App, Fail, Limit

app = App()

@app.job(queue="mail", retry=0, limit=Limit(5, name="smtp"))
async def send(to: str) -> str:
    if to == "nobody":
        raise Fail("no such mailbox")
    return to

@app.job
def report() -> None: ...

app.cron("0 3 * * *", report, name="nightly")
"""
WHY = ("--reason", "a test", "--by", "ann")
JOB = "id state queue kind lane group unique headers priority payload attempts retries expirations error updated_at"
KEYS: dict[tuple[str, ...], str] = {
    ("actions",): "at by verb target reason count first_at targets",
    ("cron", "fire", "nightly", *WHY): "schedule job_id is_new",
    ("groups", "list"): "id state total succeeded failed dead cancelled unfinished",
    ("groups", "show", "letters"): "id state",
    ("jobs", "cancel", "waiting", *WHY): "job_ids left_alone is_dry_run",
    ("jobs", "explain", "bad"): "job_id state situation now history advice headers",
    ("jobs", "failures"): "fingerprint kind text count example first_at last_at queues",
    ("jobs", "list"): "jobs cursor",
    ("jobs", "purge", "--state", "cancelled", *WHY): "job_ids left_alone is_dry_run",
    ("jobs", "redrive", "bad", "--dry-run", *WHY): "job_ids left_alone is_dry_run",
    (
        "jobs",
        "show",
        "bad",
    ): f"{JOB} created_at available_at result cancellation blocks_lane policy executions refusals",
    ("lanes", "list"): "queue lane is_blocked waiting head head_state head_updated_at finished failed",
    (
        "lanes",
        "show",
        "mail",
        "d",
    ): "queue lane is_blocked waiting head head_state head_updated_at finished failed next",
    ("limits", "list"): "limit terms source held waiting",
    ("limits", "show", "smtp"): "limit terms source declared declared_by set set_by reason held waiting holders keys",
    ("queues", "list"): "name mode is_paused policy counts oldest_available_at",
    ("queues", "pause", "mail", *WHY): "queue is_paused",
    ("queues", "resume", "mail", *WHY): "queue is_paused",
    ("queues", "set", "mail", "--lease", "50", *WHY): "queue policy limit",
    ("stats",): "at jobs leases claims_ever workers stuck_slots mismatched late_schedules disk groups limits queues",
    ("top",): "store at jobs in_per_s out_per_s queues workers running failures leases_total failures_total is_part",
    ("version",): "leasemill python",
    ("wal", "stats", ".leasemill"): "folder format generation snapshot segments events jobs lanes queues bytes_on_disk",
    (
        "wal",
        "verify",
        ".leasemill",
    ): "folder format generation snapshot segments events jobs violations damage is_sound",
}
"""Keys may be added to these, and none may be removed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a job in every situation, which the commands below look at one after the other."""
    place = tmp_path_factory.mktemp("json")
    (place / "json_tasks.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("LEASEMILL_URL", raising=False)
        patch.setattr(sys, "path", [*sys.path])
        for arguments in (
            ("enqueue", "json_tasks:app", "send", "--args", '{"to": "nobody"}', "--id", "bad"),
            ("enqueue", "json_tasks:app", "send", "--args", '{"to": "ann"}', "--id", "good"),
            ("worker", "json_tasks:app", "--drain", "--log-level", "error"),
            ("enqueue", "json_tasks:app", "send", "--args", '{"to": "eve"}', "--id", "waiting"),
            ("enqueue", "json_tasks:app", "send", "--args", '{"to": "dan"}', "--lane", "d", "--delay", "3600"),
        ):
            with logging_kept():
                done = CliRunner().invoke(main, list(arguments))
            assert done.exit_code == 0, done.output
        sys.modules["json_tasks"].app.group("letters").create()
        yield place
        sys.modules["json_tasks"].app.close()
        sys.modules.pop("json_tasks", None)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", KEYS, ids=lambda command: " ".join(command[:2]))
def test_json_is_one_document_with_its_keys_and_nothing_else(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, [*command, "--json"])
    assert done.exit_code == 0, done.output
    found: Any = json.loads(done.stdout)
    if isinstance(found, list):
        assert found, "nothing to look at"
        found = found[0]
    assert set(KEYS[command].split()) <= set(found), sorted(found)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        (("jobs", "show", "nothing"), 1),
        (("jobs", "explain", "nothing"), 1),
        (("queues", "pause", "mial", *WHY), 1),
        (("cron", "show", "nothing"), 1),
        (("groups", "show", "nothing"), 1),
        (("limits", "show", "nothing"), 1),
        (("db", "status"), 2),
        (("stats", "--url", "flie:."), 2),
        (("stats", "--url", "postgresql://127.0.0.1:1/shop?retry_for_s=0.1"), 3),
    ],
)
def test_what_fails_prints_no_document_and_one_sentence_on_stderr(command: tuple[str, ...], exit_code: int) -> None:
    done = CliRunner().invoke(main, [*command, "--json"])
    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
