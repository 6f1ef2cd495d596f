"""`leasemill enqueue --from`: a job for each line of a file."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import enqueue_file, main
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job, JobState
from leasemill.store.factory import open_store
from leasemill.store.file.store import FileStore
from tests.lab.processes import wait_until
from tests.lab.terminals import Terminal

TASKS = """
from leasemill import App

app = App()

@app.job(queue="mail")
async def send(to: str, copies: int = 1) -> None: ...
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "bulk_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("bulk_tasks", None)


def write(*lines: object) -> None:
    Path("jobs.jsonl").write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))


def enqueue(*arguments: str, file: str = "jobs.jsonl", text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["enqueue", "bulk_tasks:app", "send", "--from", file, *arguments], input=text)


def jobs() -> list[Job]:
    with open_store("file:./.leasemill") as store:
        return list(store.jobs(limit=10_000).jobs)


def test_each_line_becomes_a_job_in_the_order_of_the_lines() -> None:
    write({"to": "ann"}, "", {"to": "bob", "copies": 2})
    result = enqueue("--priority", "3")
    assert (result.exit_code, result.stdout) == (0, "2 jobs enqueued\n")
    assert [(job.spec.payload, job.spec.priority) for job in jobs()] == [
        (b'{"to":"ann"}', 3),
        (b'{"copies":2,"to":"bob"}', 3),
    ]


def test_lines_come_from_standard_input() -> None:
    result = enqueue("--json", file="-", text='{"to": "ann"}\n{"to": "bob"}')
    assert json.loads(result.stdout) == {"jobs": 2, "duplicates": 0, "lines": 2}


def test_a_file_with_ids_can_be_sent_again() -> None:
    write({"to": "ann", "key": "a"}, {"to": "bob", "key": 7})
    assert enqueue("--id-field", "key").stdout == "2 jobs enqueued\n"
    assert enqueue("--id-field", "key").stdout == "0 jobs enqueued, 2 duplicates skipped\n"
    assert [job.spec.id for job in jobs()] == ["a", "7"]


def test_a_field_that_is_a_parameter_too_stays_an_argument() -> None:
    write({"to": "ann"})
    assert enqueue("--id-field", "to").exit_code == 0
    assert [(job.spec.id, job.spec.payload) for job in jobs()] == [("ann", b'{"to":"ann"}')]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"to": 7}, "argument 'to': Expected `str`, got `int`"),
        ("{", "it is not JSON"),
        ("[1]", "it must be a JSON object"),
        ({"to": "ann", "whom": "ann"}, "unexpected keyword argument 'whom'"),
        ({"to": "x" * 1_048_576}, "payload has 1,048,585 bytes; the limit is 1,048,576"),
    ],
)
def test_a_wrong_line_is_named_and_those_before_it_are_enqueued(line: object, sentence: str) -> None:
    write({"to": "ann"}, {"to": "bob"}, line, {"to": "cy"})
    result = enqueue()
    assert result.exit_code == 2
    assert "line 3 of jobs.jsonl: " in result.stderr
    assert sentence in result.stderr
    assert "2 jobs enqueued, up to line 2" in result.stderr
    assert [json.loads(job.spec.payload)["to"] for job in jobs()] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("line", "sentence"), [({"to": "ann"}, "it has no field 'key'"), ({"to": "ann", "key": True}, "must be a string")]
)
def test_an_id_must_be_there_and_a_text(line: object, sentence: str) -> None:
    write(line)
    result = enqueue("--id-field", "key")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "nothing was enqueued" in result.stderr


def test_lines_are_sent_in_batches_up_to_the_one_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_file, "BATCH", 10)
    sizes: list[int] = []
    run = FileStore.run

    def counting(self: FileStore, command: Any) -> Any:
        if isinstance(command, c.Enqueue):
            sizes.append(len(command.jobs))
        return run(self, command)

    monkeypatch.setattr(FileStore, "run", counting)
    write(*({"to": str(number)} for number in range(25)), "wrong", *({"to": "never"} for _ in range(10)))
    result = enqueue()
    assert result.exit_code == 2
    assert "25 jobs enqueued, up to line 25" in result.stderr
    assert sizes == [10, 10, 5]


def test_a_known_id_with_other_content_stops_after_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_file, "BATCH", 2)
    write({"to": "ann", "key": "a"})
    enqueue("--id-field", "key")
    write({"to": "other", "key": "a"}, {"to": "bob", "key": "b"}, {"to": "cy", "key": "c"})
    result = enqueue("--id-field", "key")
    assert result.exit_code == 1
    assert "line 1: job 'a' exists with other content" in result.stderr
    assert "1 job enqueued, up to line 2" in result.stderr
    assert [job.spec.id for job in jobs()] == ["a", "b"]


def test_a_store_that_fails_in_the_middle_leaves_nothing_to_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_file, "BATCH", 2)
    run, batches = FileStore.run, 0

    def failing(self: FileStore, command: Any) -> Any:
        nonlocal batches
        batches += isinstance(command, c.Enqueue)
        if isinstance(command, c.Enqueue) and batches == 2:
            raise Unavailable("disk full")
        return run(self, command)

    write(*({"to": str(number), "key": str(number)} for number in range(5)))
    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "run", failing)
        result = enqueue("--id-field", "key")
    assert result.exit_code == 3
    assert "disk full (2 jobs enqueued, up to line 2; lines 3 to 4 may or may not be enqueued)" in result.stderr
    assert enqueue("--id-field", "key").stdout == "3 jobs enqueued, 2 duplicates skipped\n"


def test_a_dry_run_reports_every_wrong_line_and_enqueues_nothing() -> None:
    write({"to": 1}, {"to": "ann"}, {"to": 2})
    result = enqueue("--dry-run")
    assert result.exit_code == 2
    assert re.findall(r"^line (\d) of jobs.jsonl: ", result.stdout, re.MULTILINE) == ["1", "3"]
    assert result.stdout.endswith("2 lines are wrong, 1 right: nothing was enqueued\n")
    write({"to": "ann"})
    assert enqueue("--dry-run").stdout == "1 job would be enqueued\n"
    assert json.loads(enqueue("--dry-run", "--json").stdout) == {"lines": 1, "wrong": []}
    write(*["wrong"] * 30)
    assert enqueue("--dry-run").stdout.endswith("the first 20 wrong lines: nothing was enqueued\n")
    assert not Path(".leasemill").exists() or jobs() == []


def test_lines_become_members_of_a_group() -> None:
    with open_store("file:./.leasemill") as store:
        store.create_group("letters")
    write({"to": "ann"}, {"to": "bob"})
    result = enqueue("--group", "letters")
    assert result.exit_code == 0, result.output
    assert [job.spec.rules and job.spec.rules.group for job in jobs()] == ["letters", "letters"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from", "jobs.jsonl", "--args", "{}"), "--args is for one job"),
        (("--from", "jobs.jsonl", "--id", "one"), "--id is for one job"),
        (("--from", "jobs.jsonl", "--unique", "key"), "--unique is for one job"),
        (("--id-field", "key"), "--id-field needs --from"),
        (("--dry-run",), "--dry-run needs --from"),
        (("--from", "nowhere.jsonl"), "--from nowhere.jsonl: No such file or directory"),
    ],
)
def test_a_wrong_call_gets_a_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(main, ["enqueue", "bulk_tasks:app", "send", *arguments])
    assert (result.exit_code, sentence in result.output) == (2, True), result.output


def numbered(number: int) -> dict[str, str]:
    return {"to": str(number), "key": f"{number:06d}"}


def write_without_end(pipe: Path) -> None:
    with suppress(BrokenPipeError), pipe.open("w") as lines:
        for number in count():
            lines.write(json.dumps(numbered(number)) + "\n")


def test_an_interruption_reports_the_last_line_that_was_sent(project: Path) -> None:
    os.mkfifo("pipe")
    threading.Thread(target=write_without_end, args=[project / "pipe"], daemon=True).start()
    arguments = ("enqueue", "bulk_tasks:app", "send", "--from", "pipe", "--id-field", "key")
    with Terminal(*arguments, cwd=project) as terminal:
        wait_until(lambda: re.search(r"━.* [1-9][\d,]* jobs enqueued", terminal.read()) is not None, "a bar")
        terminal.press("\x03")
        assert terminal.await_end() == 1
        found = re.search(r"interrupted: ([\d,]+) jobs enqueued, up to line ([\d,]+)\s*$", terminal.text)
        assert found, terminal.text
    with open_store("file:./.leasemill") as store:
        sent = store.totals().counts[JobState.READY]
    assert f"{sent:,}" == found[1] == found[2]
    write(*map(numbered, range(sent + 1_000)))
    result = enqueue("--id-field", "key", "--quiet")
    assert result.exit_code == 0, result.output
    with open_store("file:./.leasemill") as store:
        assert store.totals().counts[JobState.READY] == sent + 1_000
