"""Progress of long commands: a bar on a terminal, lines elsewhere, nothing where nobody reads it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.cli import progress as progressing
from leasemill.cli.interrupt import Interruptible
from leasemill.cli.progress import MEGABYTES, ShownProgress
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.factory import open_store
from leasemill.store.file.build import build
from leasemill.store.file.inspect import examine
from tests.lab.processes import wait_until
from tests.lab.terminals import SHOW_CURSOR, Terminal

JOBS = 400


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store:
        store.enqueue([JobSpec(f"job-{number:03d}", "mail", "send") for number in range(JOBS)])
    return url


def cancelled(url: str) -> int:
    with open_store(url) as store:
        return store.totals().counts[JobState.CANCELLED]


def at(seconds: float) -> Callable[[], float]:
    """A clock that shows 0 when the progress begins and `seconds` from then on."""
    times = iter([0.0])
    return lambda: next(times, seconds)


@pytest.mark.parametrize(
    ("what", "unit", "total", "seconds", "count", "share", "expected"),
    [
        ("redriven", "job", 40_000, 6, 12_000, None, "12,000 of 40,000 jobs redriven, 2,000/s, 14 s left"),
        ("redriven", "job", None, 6, 12_000, None, "12,000 jobs redriven, 2,000/s"),
        ("redriven", "job", None, 6, 1, None, "1 job redriven, 0.2/s"),
        ("enqueued", "job", None, 10, 1_000, 0.25, "1,000 jobs enqueued, 100/s, 30 s left"),
        ("redriven", "job", 40, 0.5, 20, None, "20 of 40 jobs redriven"),
        ("redriven", "job", 0, 6, 0, None, "0 of 0 jobs redriven"),
        ("read", MEGABYTES, 45_600_000, 4, 12_300_000, None, "12.3 of 45.6 MB read, 3.1 MB/s, 11 s left"),
        ("read", MEGABYTES, None, 4, 12_300_000, None, "12.3 MB read, 3.1 MB/s"),
        ("applied", "migration", 12, 7_300, 1, None, "1 of 12 migrations applied, 0.0/s, 22 h 18 min left"),
        ("checking schema jobs", "", None, 75, 0, None, "checking schema jobs, 1 min 15 s so far"),
    ],
)
def test_a_sentence_has_the_count_the_rate_and_the_time_left(
    what: str, unit: str, total: int | None, seconds: float, count: int, share: float | None, expected: str
) -> None:
    progress = ShownProgress(what, unit, total, monotonic=at(seconds))
    progress.reach(count, share=share)
    assert progress.sentence() == expected


def test_what_is_waited_for_takes_the_place_of_the_rate() -> None:
    progress = ShownProgress("applied", "migration", 12, monotonic=at(5))
    progress.reach(3)
    progress.note = "migration 0010_limits waits for a lock"
    assert progress.sentence() == "3 of 12 migrations applied, migration 0010_limits waits for a lock"


def test_more_than_was_expected_is_the_whole() -> None:
    progress = ShownProgress("redriven", "job", 10, monotonic=at(5))
    progress.add(8)
    progress.add(4)
    assert (progress.count, progress.done_share) == (12, 1.0)
    assert progress.sentence() == "12 of 10 jobs redriven, 2.4/s, 0 s left"


def test_elsewhere_than_on_a_terminal_lines_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progressing, "LINE_EVERY_S", 0.01)
    printed = ""
    with ShownProgress("redriven", "job", 40) as progress:
        progress.add(20)

        def is_printed() -> bool:
            nonlocal printed
            printed += capsys.readouterr().err
            return "20 of 40 jobs redriven" in printed

        wait_until(is_printed, "a line of progress")
    assert "\x1b" not in printed


def test_a_quiet_progress_has_no_thread() -> None:
    before = set(threading.enumerate())
    with ShownProgress("redriven", "job", is_quiet=True) as progress:
        progress.add(1)
        assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_nothing_is_shown_when_nobody_reads_it(url: str, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr(progressing, "LINE_EVERY_S", 0.001)
    arguments = ["jobs", "cancel", "--all", "--limit", "40", "--rate", "100/s", "--reason", "a test", "--url", url]
    result = CliRunner().invoke(main, [*arguments, option])
    assert result.exit_code == 0, result.output
    assert result.stderr == ("" if option == "--json" else "40 jobs cancelled\n")
    assert (len(json.loads(result.stdout)["job_ids"]) if option == "--json" else result.stdout.count("\n")) == 40


def test_lines_of_a_sweep_count_right(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progressing, "LINE_EVERY_S", 0.01)
    arguments = ["jobs", "cancel", "--queue", "mail", "--rate", "1000/s", "--reason", "a test", "--url", url]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    *lines, last = result.stderr.splitlines()
    counts = [int(re.match(r"(\d+) of 400 jobs cancelled", line)[1]) for line in lines]  # type: ignore[index]
    assert counts
    assert counts == sorted(counts)
    assert last == "400 jobs cancelled"
    assert result.stdout.splitlines() == [f"job-{number:03d}" for number in range(JOBS)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["--all"], r"\d+ of 400 jobs"),
        (["--all", "--limit", "300"], r"\d+ of 300 jobs"),
        (["--state", "failed"], None),
        (["--kind", "send"], r"\d+ jobs? would"),
        (["--id", "job-001", "--id", "job-002"], r"\d of 2 jobs"),
    ],
)
def test_the_whole_is_shown_where_it_is_known(
    url: str, monkeypatch: pytest.MonkeyPatch, filters: list[str], expected: str | None
) -> None:
    sentences: list[str] = []
    monkeypatch.setattr(ShownProgress, "__exit__", lambda self, *_: sentences.append(self.sentence()))
    monkeypatch.setattr(ShownProgress, "__enter__", lambda self: self)
    result = CliRunner().invoke(main, ["jobs", "cancel", *filters, "--dry-run", "--reason", "a test", "--url", url])
    assert result.exit_code == 0, result.output
    assert re.match(expected or r"0 of 0 jobs", sentences[0]), sentences


# In a terminal -------------------------------------------------------------------------------------------------

SWEEP = ("jobs", "cancel", "--all", "--rate", "20/s", "--reason", "a test")


def test_a_bar_is_shown_and_an_interruption_reports_what_was_done(url: str, tmp_path: Path) -> None:
    output = tmp_path / "ids"
    with Terminal(*SWEEP, "--url", url, cwd=tmp_path, stdout=output) as terminal:
        shown = re.compile(r"━.* \d+ of 400 jobs cancelled, .*/s, .* left")
        wait_until(lambda: shown.search(terminal.read()) is not None, "a bar")
        terminal.press("\x03")
        assert terminal.await_end() == 1
        done = cancelled(url)
        assert 0 < done < JOBS
        ending = terminal.text.replace("\r", "").splitlines()
        assert ending[-2].endswith(f"{done} jobs cancelled")
        assert ending[-1] == "Error: interrupted: run the same command again to continue"
        assert terminal.text.rstrip().rindex(SHOW_CURSOR)
    assert output.read_text().splitlines() == [f"job-{number:03d}" for number in range(done)]


def test_ids_stand_above_the_bar_where_both_are_on_one_terminal(url: str, tmp_path: Path) -> None:
    with Terminal(*SWEEP, "--limit", "100", "--url", url, cwd=tmp_path, rows=120) as terminal:
        wait_until(lambda: "of 100 jobs cancelled" in terminal.read(), "a bar")
        assert terminal.await_end() == 0
        shown = terminal.shown().strip().splitlines()
    assert shown == [*(f"job-{number:03d}" for number in range(100)), "100 jobs cancelled"]


def test_a_quick_command_shows_no_bar(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progressing, "is_screen", lambda _stream: True)
    monkeypatch.setattr(progressing, "BAR_AFTER_S", 60.0)
    result = CliRunner().invoke(main, ["jobs", "cancel", "job-000", "--reason", "a test", "--url", url])
    assert (result.stdout, result.stderr) == ("job-000\n", "1 job cancelled\n")


def test_an_interruption_without_a_terminal_reports_what_was_done(url: str, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "leasemill", *SWEEP, "--url", url],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        try:
            wait_until(lambda: "of 400 jobs cancelled" in errors.read_text(), "a line of progress")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 1
        finally:
            process.kill()
            process.wait()
    *_, summary, error = errors.read_text().splitlines()
    assert summary == f"{cancelled(url)} jobs cancelled"
    assert error.startswith("Error: interrupted")


# What reports it -----------------------------------------------------------------------------------------------


def test_verify_and_snapshot_report_bytes_of_the_log(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        for batch in range(30):
            store.enqueue([JobSpec(f"{batch}-{one}", "mail", "send", b'"%b"' % (b"x" * 1_000)) for one in range(100)])
    read: list[tuple[int, int]] = []
    facts = examine(tmp_path / "jobs", lambda done, total: read.append((done, total)))
    assert len(read) >= 3
    assert read == sorted(read)
    assert {total for _, total in read} == {read[0][1]}
    assert read[-1][0] < sum(segment.bytes_used for segment in facts.segments) <= read[0][1]
    covered: list[tuple[int, int]] = []
    assert build(tmp_path / "jobs", keep_segments=False, seal_first=True, on_progress=lambda *it: covered.append(it))
    assert len(covered) >= 3
    assert all(done < total for done, total in covered)


def test_an_interruption_waits_for_the_next_check_and_a_second_one_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruptible() as interruptible:
        interruptible.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interruptible.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
