"""Presets of leases and reaper intervals on the command line, as in the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.api.policy import LEASES_S, REAPER_INTERVALS_S
from leasemill.cli import main
from leasemill.kernel.model import SECOND
from leasemill.store.factory import open_store
from leasemill.worker.worker import Worker


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    return tmp_path


def leasemill(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(("written", "seconds"), [*LEASES_S.items(), ("45", 45), ("1.5", 1.5)])
def test_a_queues_lease_is_a_preset_or_seconds(folder: Path, written: str, seconds: float) -> None:
    url = f"file:{folder}/jobs"
    open_store(url).close()
    result = leasemill("queues", "set", "mail", "--lease", written, "--create", "--reason", "a test", "--url", url)
    assert result.exit_code == 0, result.output
    with open_store(url) as store:
        (queue,) = store.queues()
    assert queue.policy is not None
    assert queue.policy.lease_ttl_us == seconds * SECOND


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("written", "seconds"), [*REAPER_INTERVALS_S.items(), ("7", 7)])
def test_a_workers_reaper_interval_is_a_preset_or_seconds(
    monkeypatch: pytest.MonkeyPatch, folder: Path, written: str, seconds: float
) -> None:
    module = f"durations_{written.replace('-', '_')}"
    (folder / f"{module}.py").write_text(
        'from leasemill import App\n\napp = App()\n\n@app.job(lease="heavy")\ndef noop() -> None: ...\n'
    )
    given: list[Any] = []
    init = Worker.__init__

    def noting(self: Worker, *arguments: Any, **options: Any) -> None:
        given.append(options["reaper_interval"])
        init(self, *arguments, **options)

    monkeypatch.setattr(Worker, "__init__", noting)
    result = leasemill("worker", f"{module}:app", "--drain", "--reaper-interval", written)
    assert result.exit_code == 0, result.output
    assert given == [seconds]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("call", "names"),
    [
        (["queues", "set", "mail", "--reason", "a test", "--lease", "long"], "default (30 s), heavy (60 s)"),
        (["worker", "tasks:app", "--reaper-interval", "aggressive"], "default (10 s), high-volume (5 s)"),
    ],
)
def test_what_is_neither_is_refused_with_the_names(call: list[str], names: str) -> None:
    result = leasemill(*call)
    assert result.exit_code == 2
    assert names in " ".join(result.output.split())
