"""Every screen counts by the store's clock: a folder that was first opened two hours ago by the machine's clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.kernel.model import SECOND, JobSpec
from leasemill.store.base import Store
from leasemill.store.file.clock import RealMachine
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule

HOUR = 3_600 * SECOND


class LateMachine(RealMachine):
    """Its clock was two hours behind when the folder was first opened in this boot."""

    def wall_us(self) -> int:
        return super().wall_us() - 2 * HOUR


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("LEASEMILL_URL", f"file:{tmp_path / 'jobs'}")
    with FileStore(tmp_path / "jobs", machine=LateMachine()) as store:
        store.enqueue([JobSpec("later", "q", "k", lane="lane", delay_us=HOUR)])
        yield store


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@rule("L8")
def test_a_job_that_is_due_in_an_hour_is_due_in_an_hour_on_every_screen(store: Store) -> None:
    assert "scheduled" in shown("jobs", "list")
    assert "SCHEDULED" in shown("jobs", "show", "later")
    for screen in (("jobs", "list"), ("jobs", "explain", "later"), ("stats",), ("lanes", "show", "q", "lane")):
        output = shown(*screen)
        assert "60.0 min" in output or "1.0 h" in output or "59." in output, (screen, output)
