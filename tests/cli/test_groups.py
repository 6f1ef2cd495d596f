"""`leasemill groups`, and groups in the other commands, on a folder of jobs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobSpec, Rules
from leasemill.store.factory import open_store

TASKS = """
from pathlib import Path

from leasemill import PREVIOUS, App, Fail, chain

app = App()

@app.job(queue="rows", retry=0)
async def load(row: int) -> int:
    if row == 1 and not Path("mended").exists():
        raise Fail("row 1")
    return row

@app.job(queue="reports")
async def report(name: str) -> str:
    return name

@app.job
async def notify(name: str) -> None: ...

@app.job
async def double(number: int) -> int:
    return 2 * number
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "group_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("group_tasks", None)


def leasemill(*arguments: str, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == exit_code, result.output
    return result


def document(*arguments: str) -> Any:
    return json.loads(leasemill(*arguments, "--json").stdout)


def make(rows: int = 3, *, is_sealed: bool = True) -> None:
    """A group whose row 1 fails."""
    sys.path.insert(0, ".")
    from group_tasks import app, load, notify, report  # type: ignore[import-not-found]  # noqa: PLC0415

    with app:
        group = app.group("import-17", then=report.call("17"), on_end=notify.call("17"))
        group.enqueue_many(load.options(job_id=f"row-{row}").call(row) for row in range(rows))
        if is_sealed:
            group.seal()


def drain() -> None:
    leasemill("worker", "group_tasks:app", "--drain", "--log-level", "error")


COUNTS = {"total": 3, "succeeded": 0, "failed": 0, "dead": 0, "cancelled": 0, "unfinished": 3}


def test_a_group_is_listed_with_its_counts() -> None:
    make()
    (listed,) = document("groups", "list")
    assert {name: listed[name] for name in COUNTS} == COUNTS
    assert (listed["id"], listed["state"], listed["ended_at"]) == ("import-17", "running", None)
    drain()
    (listed,) = document("groups", "list")
    assert (listed["state"], listed["succeeded"], listed["failed"]) == ("ended", 2, 1)
    assert document("groups", "list", "--open") == []
    lines = leasemill("groups", "list").stdout.splitlines()
    assert lines[0].split()[:3] == ["group", "state", "total"]
    assert lines[1].split()[:8] == ["import-17", "ended", "3", "2", "1", "0", "0", "0"]


def test_a_list_that_is_cut_off_says_so() -> None:
    with open_store("file:./.leasemill") as store:
        for number in range(5):
            store.create_group(f"group-{number}")
    result = leasemill("groups", "list", "--limit", "3")
    assert len(result.stdout.splitlines()) == 4
    assert "there are more: --limit 6" in result.stderr


def test_a_group_is_shown_with_its_callbacks_and_what_is_in_their_way() -> None:
    make()
    drain()
    text = leasemill("groups", "show", "import-17").stdout
    assert "members    3 members, 2 succeeded, 1 failed, 0 unfinished" in text
    assert "then       report (import-17/then): not enqueued, 1 member has not succeeded" in text
    assert "on_end     notify (import-17/end): succeeded" in text
    assert "row-1  failed  rows   load  1         Fail: row 1" in text
    shown = document("groups", "show", "import-17")
    assert shown["then"] == {"id": "import-17/then", "kind": "report", "queue": "reports", "state": None}
    assert shown["members"]["failed"] == ["row-1"]


def test_failed_members_are_redriven_and_then_comes(project: Path) -> None:
    make()
    drain()
    (project / "mended").touch()
    listed = document("groups", "redrive", "import-17", "--failed", "--reason", "mended", "--dry-run")
    assert (listed["job_ids"], listed["is_dry_run"]) == (["row-1"], True)
    assert document("groups", "redrive", "import-17", "--failed", "--reason", "mended")["job_ids"] == ["row-1"]
    drain()
    assert document("groups", "show", "import-17")["then"]["state"] == "succeeded"
    assert document("actions", "--verb", "redrive")[0]["target"] == "row-1"
    assert document("groups", "redrive", "import-17", "--reason", "again")["job_ids"] == []


def test_a_group_is_sealed_by_hand(project: Path) -> None:
    (project / "mended").touch()
    make(is_sealed=False)
    drain()
    assert document("groups", "list", "--open")[0]["state"] == "open"
    assert (
        "group import-17 is sealed: 3 members, 3 succeeded, 0 unfinished"
        in leasemill("groups", "seal", "import-17", "--reason", "its producer is gone").stdout
    )
    drain()
    assert document("groups", "seal", "import-17", "--reason", "its producer is gone")["state"] == "succeeded"
    assert document("jobs", "show", "import-17/then")["state"] == "succeeded"


def test_a_group_is_cancelled_with_a_reason() -> None:
    make(is_sealed=False)
    assert "--reason" in leasemill("groups", "cancel", "import-17", exit_code=2).output
    assert document("groups", "cancel", "import-17", "--reason", "wrong file")["job_ids"] == ["row-0", "row-1", "row-2"]
    (listed,) = document("groups", "list")
    assert (listed["state"], listed["cancelled"]) == ("ended", 3)
    with open_store("file:./.leasemill") as store:
        assert store.job("import-17/end") is not None
        assert store.job("import-17/then") is None


def test_cancelling_a_group_prints_how_many_jobs_and_not_every_id() -> None:
    make()
    cancelled = leasemill("groups", "cancel", "import-17", "--reason", "wrong file")
    assert (cancelled.stdout, cancelled.stderr) == ("", "3 jobs cancelled\n")
    redriven = leasemill("groups", "redrive", "import-17", "--reason", "it was right")
    assert redriven.stderr.splitlines() == [
        "0 jobs redriven",
        "3 cancelled members are not redriven: name them, leasemill jobs redrive JOB_ID… --include-cancelled",
    ]
    shown = leasemill("groups", "show", "import-17").stdout
    assert "then       report (import-17/then): not enqueued, 3 members have not succeeded" in shown


@pytest.mark.parametrize("command", ["show", "seal", "cancel", "redrive"])
def test_a_group_that_is_not_there_is_refused(command: str) -> None:
    make()
    reason = ["--reason", "because"] if command != "show" else []
    result = leasemill("groups", command, "import-71", *reason, exit_code=1)
    assert "there is no group 'import-71'; did you mean 'import-17'?" in result.output


def test_members_are_found_by_their_group_and_show_it() -> None:
    make()
    leasemill("enqueue", "group_tasks:app", "report", "--args", '{"name": "alone"}', "--id", "alone")
    assert [job["id"] for job in document("jobs", "list", "--group", "import-17", "--oldest-first")["jobs"]] == [
        *("row-0", "row-1", "row-2")
    ]
    assert document("jobs", "show", "row-0")["group"] == "import-17"
    assert "group      import-17" in leasemill("jobs", "show", "row-0").stdout
    assert document("jobs", "cancel", "--group", "import-17", "--reason", "wrong")["job_ids"] == [
        *("row-0", "row-1", "row-2")
    ]


def test_a_job_from_the_shell_joins_a_group_that_is_open() -> None:
    make(is_sealed=False)
    job_id = document("enqueue", "group_tasks:app", "load", "--args", '{"row": 9}', "--group", "import-17")["id"]
    with open_store("file:./.leasemill") as store:
        assert job_id in [job.spec.id for job in store.jobs(JobFilter(group="import-17")).jobs]
    leasemill("groups", "seal", "import-17", "--reason", "its producer is gone")
    refused = leasemill(
        "enqueue", "group_tasks:app", "load", "--args", '{"row": 9}', "--group", "import-17", exit_code=1
    )
    assert "is sealed" in refused.output
    unknown = leasemill("enqueue", "group_tasks:app", "load", "--args", '{"row": 9}', "--group", "other", exit_code=1)
    assert "there is no group 'other'" in unknown.output


def test_a_callback_that_is_not_there_yet_is_explained() -> None:
    make()
    text = leasemill("jobs", "explain", "import-17/then").stdout
    assert (
        "Job 'import-17/then' (report, queue 'reports') has not been enqueued yet: it is the `then` callback of group "
        "'import-17'." in text
    )
    assert "It waits for 3 of 3 members." in text
    found = document("jobs", "explain", "import-17/end")
    assert (found["state"], found["situation"]) == (None, "not enqueued: waits for its group")
    assert "there is no job 'import-17/other'" in leasemill("jobs", "explain", "import-17/other", exit_code=1).output


def test_stats_count_the_groups_that_are_open_and_those_that_are_not_sealed() -> None:
    with open_store("file:.leasemill") as store:
        for group in ("empty", "open", "sealed"):
            store.create_group(group)
        store.enqueue([JobSpec("row", "rows", "load", rules=Rules(group="sealed"))])
        store.seal_group("sealed")
        store.seal_group("empty")
    assert document("stats")["groups"] == {"open": 2, "unsealed": 1}
    assert "2 groups open, 1 not sealed" in leasemill("stats").output
