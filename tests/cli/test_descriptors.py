"""Out of file descriptors: every command says which limit it is and what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leasemill.cli import lazy_group, main
from leasemill.errors import Unavailable
from leasemill.store.file.disk import RealDisk
from leasemill.store.file.store import FileStore

APP = "from leasemill import App\napp = App()\n@app.job\ndef f(n: int) -> int:\n    return n\n"


def test_a_worker_with_too_few_descriptors_names_the_limit(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(APP)
    ended = subprocess.run(
        ["sh", "-c", f'ulimit -n 14; exec "{sys.executable}" -m leasemill worker few:app --drain'],
        cwd=tmp_path,
        env={**os.environ, "LEASEMILL_URL": "file:jobs", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 3, ended.stderr
    assert "Error: too many open files: this process may have 14 open (ulimit -n); allow more" in ended.stderr
    assert "unexpected" not in ended.stderr


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EMFILE, "too many open files: this process may have"),
        (errno.ENFILE, "too many open files on this machine: raise its limit (sysctl fs.file-max)"),
    ],
)
def test_any_command_says_what_to_do_also_when_the_error_led_to_another(
    monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    @click.command()
    def failing() -> None:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise RuntimeError("cannot start") from error

    monkeypatch.setattr(lazy_group.LazyCommand, "load", lambda _self: failing)
    result = CliRunner().invoke(main, ["version"])
    assert result.exit_code == 3
    assert sentence in result.output


def test_a_store_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_disk: RealDisk, _name: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(RealDisk, "open", refuse)
    with pytest.raises(Unavailable, match=r"this process may have [0-9,]+ open \(ulimit -n\)"):
        FileStore(tmp_path / "jobs")
