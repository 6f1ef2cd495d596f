"""What a benchmark's exit code means: a bar that is missed or not measured fails the run. Where its results are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import postgres
from benchmarks.report import Bar, finish, table

ROOT = Path(__file__).resolve().parents[1]
MET = Bar("drain, jobs/s", 2_000, 1_000)
MISSED = Bar("pickup, ms", 9, 3, at_least=False)


def test_a_run_that_met_its_bars_passes(capsys: pytest.CaptureFixture[str]) -> None:
    finish([MET])
    assert capsys.readouterr().err == ""


def test_a_missed_bar_fails_the_run_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        finish([MET, MISSED])
    assert (ended.value.code, capsys.readouterr().err) == (1, "missed: pickup, ms\n")


@pytest.mark.parametrize("bars", [[MET], []])
def test_a_bar_that_was_not_measured_fails_the_run_by_name(bars: list[Bar], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        finish(bars, ["drain: times pg-boss's"])
    assert (ended.value.code, capsys.readouterr().err) == (1, "not measured: drain: times pg-boss's\n")


def test_a_table_without_rows_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    table("nothing", ("", "jobs/s"), [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("given", "is_narrowed"),
    [
        ([], False),
        (["--rounds", "1", "--jobs", "2000"], False),
        (["--only", ",".join(postgres.ROWS)], False),
        (["--only", "drain"], True),
        (["--peers", ""], True),
        (["--peers", "pgqueuer"], True),
    ],
)
def test_only_a_run_that_was_narrowed_may_leave_bars_out(given: list[str], is_narrowed: bool) -> None:
    assert postgres.is_narrowed(postgres.arguments(given)) is is_narrowed


def test_every_benchmark_has_its_results() -> None:
    targets = re.findall(r"^(bench-[a-z]+): \$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    headings = [
        line for line in (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines() if line.startswith("## ")
    ]
    assert len(targets) > 8
    assert [target for target in targets if not any(f"`make {target}`" in heading for heading in headings)] == []
