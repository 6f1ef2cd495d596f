"""`leasemill top`: how a frame looks at any size, and the command in a terminal."""

from __future__ import annotations

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment

from leasemill.cli import main
from leasemill.cli.top import LATE_S, Seen, StoreReader, problem
from leasemill.cli.top_screen import Notes, Picture, shortened
from leasemill.errors import Broken, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.operator.overview import FailureLine, Overview, QueueLine, RunningLine, WorkerLine
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.memory import MemoryStore
from tests.lab.postgres import KillableServer
from tests.lab.terminals import ENTER_SCREEN, HIDE_CURSOR, LEAVE_SCREEN, SHOW_CURSOR, Terminal

JOB = "01a1e941-4012-73d9-a35f-be0708108{:03d}"


def counts(**given: int) -> dict[JobState, int]:
    return {state: given.get(state.value, 0) for state in JobState}


def busy(queues: int = 4, workers: int = 3, running: int = 9, failures: int = 7) -> Overview:
    return Overview(
        "postgresql://leasemill@database.internal.example.com/jobs?schema=leasemill",
        1_700_000_000_000_000,
        counts(ready=12_345_678, leased=212, succeeded=987_654_321, failed=1_234, dead=3),
        1_234.5,
        0.25,
        [
            QueueLine(
                f"queue-{number}" * (number + 1),
                number == 1,
                counts(ready=1_234_567, leased=100, failed=12),
                99.95,
                None if number else 0.0,
                3_725.0 if number % 2 else None,
            )
            for number in range(queues)
        ],
        [
            WorkerLine(
                f"mill-{number}-4711-31f64a6d",
                "mill.example.com",
                "0.1.0",
                20,
                7,
                0,
                1.5,
                90_000.0,
                12,
                ["a"],
                False,
                number == 2,
            )
            for number in range(workers)
        ],
        [
            RunningLine(
                JOB.format(number),
                "render_report",
                "reports",
                1,
                "mill-1-4711-31f64a6d",
                number - 0.5,
                3.25,
                "75% pages",
                number == 0,
            )
            for number in range(running)
        ],
        [
            FailureLine(
                JOB.format(number), "send", "mail", JobState.FAILED, 3, 61.0, "Fail: no \x1b[31m mailbox\nat line 2"
            )
            for number in range(failures)
        ],
        212,
        1_237,
        ["failures"],
    )


def drawn(picture: Picture, width: int, height: int) -> list[list[Segment]]:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    return console.render_lines(picture, console.options.update(height=height), pad=False)


def lines(shown: Overview | None, width: int, height: int, *, is_whole: bool = False, **notes: Any) -> list[str]:
    picture = Picture(shown, Notes(has_keys=True, **notes), is_whole=is_whole)
    return ["".join(segment.text for segment in line).rstrip() for line in drawn(picture, width, height)]


@pytest.mark.parametrize("width", [40, 60, 79, 80, 81, 100, 119, 120, 140, 200])
@pytest.mark.parametrize("height", [5, 12, 24, 50])
def test_a_picture_fills_a_terminal_and_nothing_is_wrapped(width: int, height: int) -> None:
    shown = lines(busy(), width, height)
    assert len(shown) == height
    assert max(map(cell_len, shown)) <= width
    assert not any("\x1b" in line or "\n" in line for line in shown)


@pytest.mark.parametrize("width", [80, 100, 120, 140])
def test_what_is_cut_ends_with_an_ellipsis_and_columns_stand_below_each_other(width: int) -> None:
    shown = lines(busy(), width, 40)
    running = shown[next(number for number, line in enumerate(shown) if line.startswith("RUNNING")) :][:10]
    for title in ("lease left", "ran"):
        ends = running[0].index(title) + len(title)
        assert all(line[ends - 1] in "sd" and line[ends : ends + 2].strip() == "" for line in running[1:]), running
    kinds = {re.split(r"\s{2,}", line)[4] for line in running[1:]}
    assert all(kind == "render_report" or kind.endswith("…") for kind in kinds)


def test_titles_name_the_part_that_is_shown() -> None:
    shown = "\n".join(lines(busy(), 80, 24))
    assert re.search(r"^QUEUES [234]( of 4)? ", shown, re.MULTILINE)
    assert re.search(r"^RUNNING \d of 212 ", shown, re.MULTILINE)
    assert re.search(r"^FAILURES \d of 1,237 ", shown, re.MULTILINE)
    whole = "\n".join(lines(busy(), 80, 24, is_whole=True))
    assert "QUEUES 4 " in whole
    assert "WORKERS 3 " in whole
    assert "RUNNING 9 of 212 " in whole


def test_a_wide_terminal_shows_more() -> None:
    narrow, wide = ("\n".join(lines(busy(), width, 40)) for width in (80, 140))
    for more in ("progress", "75% pages", "cancelled", "queues", JOB.format(1)):
        assert more in wide
        assert more not in narrow.replace("sort queues", "")


def test_the_job_that_is_at_risk_is_red_and_its_lease_expired() -> None:
    (line,) = [
        line
        for line in drawn(Picture(busy(), Notes()), 140, 40)
        if line[0].text.startswith(JOB.format(0)) and any("render" in segment.text for segment in line)
    ]
    assert any("expired" in segment.text and str(segment.style) == "red" for segment in line)


def test_an_empty_store_is_described_in_words() -> None:
    empty = Overview("file:/jobs", 0, counts(), None, None, [], [], [], [], 0, 0, [])
    shown = "\n".join(lines(empty, 80, 24))
    for sentence in (
        "no queue has had a job yet",
        "no worker has sent a heartbeat",
        "no job is running",
        "no job has failed",
    ):
        assert sentence in shown
    assert "in -/s  out -/s" in shown


def test_before_the_first_reading_there_is_a_line_that_says_so() -> None:
    assert "reading the store …" in lines(None, 80, 24)


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 10, "short"),
        ("01a1e941-4012-73d9", 10, "01a…2-73d9"),
        ("日本語日本語", 7, "日…本語"),
        ("red\x1b[31m\nline", 40, "red [31m line"),
        ("anything", 1, "…"),
    ],
)
def test_a_name_is_cut_by_cells_and_keeps_its_end(text: str, width: int, expected: str) -> None:
    assert shortened(text, width) == expected
    assert cell_len(expected) <= width


def test_the_last_columns_are_left_out_where_there_is_no_room() -> None:
    titles = {width: next(line for line in lines(busy(), width, 40) if line.startswith("QUEUES")) for width in (40, 60)}
    assert titles[40].split()[2:] == ["ready"]
    assert titles[60].split()[2:] == ["ready", "leased", "in/s", "out/s"]


# StoreReading -------------------------------------------------------------------------------------------------------


class Failing(MemoryStore):
    """A store that raises this instead of an answer, while it is set."""

    error: Exception | None = None

    def run(self, command: c.Command[Any]) -> Any:
        if self.error is not None:
            raise self.error
        return super().run(command)


def test_a_store_that_is_unavailable_is_noticed_and_read_again() -> None:
    with Failing() as store:
        reader = StoreReader(store, 1.0)
        reader.look()
        first = reader.seen
        assert first.reading is not None
        assert problem(first, 1.0, first.read_at + 1) == ""
        store.error = Unavailable("connection refused")
        reader.look()
        assert reader.seen.reading is first.reading
        since = reader.seen.failing_since
        assert since is not None
        notice = problem(reader.seen, 1.0, since + 12)
        assert notice.startswith("store unavailable for 12.0 s; showing what was read 12.")
        assert notice.endswith("connection refused")
        reader.look()
        assert reader.seen.failing_since == since
        store.error = None
        reader.look()
        assert problem(reader.seen, 1.0, reader.seen.read_at) == ""
        assert reader.seen.reading is not first.reading


def test_a_store_that_does_not_answer_is_noticed() -> None:
    assert problem(Seen(asked_at=100.0), 1.0, 100.0 + LATE_S) == ""
    assert problem(Seen(asked_at=100.0), 1.0, 105.0) == "the store has not responded for 5.0 s"


def test_a_damaged_store_ends_the_view() -> None:
    with Failing() as store:
        store.error = Broken("damaged")
        reader = StoreReader(store, 1.0)
        reader.look()
        assert reader.seen.fatal is store.error


# The command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store:
        fill(store)
    return url


def fill(store: Store) -> None:
    store.enqueue([JobSpec(f"one-{number}", "mail", "send") for number in range(3)])
    (lease,) = store.claim("mill-1", ["mail"], 1)
    store.nack([c.NackReport(lease.job.id, lease.token, "Fail: no such mailbox", is_permanent=True)])
    store.claim("mill-1", ["mail"], 1)


def test_where_output_is_not_a_terminal_one_overview_is_printed(url: str) -> None:
    result = CliRunner().invoke(main, ["top", "--url", url, "--interval", "0.1"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^mail +1 +1 +0 +0 +\d.* s +1$", result.output, re.MULTILINE), result.output
    assert re.search(r"^one-1 .* send +mill-1$", result.output, re.MULTILINE)
    assert re.search(r"^one-0 .* send +Fail: no such mailbox$", result.output, re.MULTILINE)
    assert "\x1b" not in result.output
    assert "q quit" not in result.output


def test_json_is_one_overview_for_machines(url: str) -> None:
    result = CliRunner().invoke(main, ["top", "--url", url, "--interval", "0.1", "--json"])
    shown = json.loads(result.output)
    assert shown["jobs"]["failed"] == 1
    assert shown["queues"][0]["queue"] == "mail"
    assert (shown["queues"][0]["in_per_s"], shown["in_per_s"]) == (0, 0)
    assert [one["job"] for one in shown["running"]] == ["one-1"]
    assert shown["running"][0]["is_at_risk"] is True
    assert shown["failures"][0]["error"] == "Fail: no such mailbox"
    assert shown["at"].endswith("Z")


def test_a_memory_store_is_refused() -> None:
    result = CliRunner().invoke(main, ["top", "--url", "memory:", "--once"])
    assert result.exit_code == 1
    assert "lives inside one process" in result.output


@pytest.mark.parametrize("leaves", ["q", "\x03"])
def test_keys_are_answered_and_the_terminal_is_put_back(url: str, tmp_path: Path, leaves: str) -> None:
    with Terminal("top", "--url", url, "--interval", "0.2", cwd=tmp_path) as terminal:
        terminal.await_text("QUEUES 1", "mail", "Fail: no such mailbox", "now by name")
        assert terminal.settings[3] != terminal.before[3]
        terminal.press("s")
        terminal.await_text("now by ready")
        terminal.press("p")
        terminal.await_text("paused: p continues")
        terminal.press("p")
        terminal.await_text("p pause")
        terminal.resize(140, 40)
        terminal.await_text("cancelled", "progress")
        terminal.press(leaves)
        assert terminal.await_end() == 0
        assert terminal.settings == terminal.before
        assert terminal.text.rindex(LEAVE_SCREEN) > terminal.text.rindex(ENTER_SCREEN)
        assert terminal.text.rindex(SHOW_CURSOR) > terminal.text.rindex(HIDE_CURSOR)
        assert "\x1b[2J" not in terminal.text  # it is written over, never erased: nothing flickers


def test_a_view_that_is_terminated_puts_the_terminal_back(url: str, tmp_path: Path) -> None:
    with Terminal("top", "--url", url, cwd=tmp_path) as terminal:
        terminal.await_text("QUEUES 1")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.await_end() == 128 + signal.SIGTERM
        assert terminal.settings == terminal.before
        assert LEAVE_SCREEN in terminal.text


def test_changes_are_shown_while_it_runs(url: str, tmp_path: Path) -> None:
    with Terminal("top", "--url", url, "--interval", "0.2", cwd=tmp_path) as terminal:
        terminal.await_text("QUEUES 1")
        with open_store(url) as store:
            store.enqueue([JobSpec("new", "slow", "crunch")])
        terminal.await_text("QUEUES 2", "slow")


def test_a_server_that_stops_is_noticed_and_its_return_too(tmp_path: Path) -> None:
    with KillableServer() as server:
        with open_store(f"{server.url()}&auto_migrate=true") as store:
            fill(store)
        url = f"{server.url()}&retry_for_s=0.3"
        with Terminal("top", "--url", url, "--interval", "0.2", cwd=tmp_path, columns=140) as terminal:
            terminal.await_text("QUEUES 1", "Fail: no such mailbox")
            server.stop("immediate")
            shown = terminal.await_text("store unavailable for")
            assert "showing what was read" in shown
            assert "Fail: no such mailbox" in shown
            server.start()
            with open_store(server.url()) as store:
                store.enqueue([JobSpec("new", "slow", "crunch")])
            terminal.await_text("QUEUES 2", "slow")
            assert "unavailable" not in terminal.shown()
            terminal.press("q")
            assert terminal.await_end() == 0
