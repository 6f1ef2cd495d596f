"""Which files' changes restart a worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leasemill.cli import reload
from leasemill.errors import Invalid


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("tasks.py", True),
        ("shop/deep/tasks.py", True),
        ("notes.txt", False),
        (".leasemill/00001.log", False),
        (".venv/lib/x.py", False),
        ("env/lib/python3.11/x.py", False),
        ("shop/__pycache__/tasks.py", False),
        ("lib/site-packages/x.py", False),
    ],
)
def test_only_the_apps_own_python_files_count(tmp_path: Path, name: str, counts: bool) -> None:
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert reload.is_code(tmp_path / name, [tmp_path]) is counts


def test_a_watched_folder_counts_wherever_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "shop"
    assert reload.is_code(folder / "tasks.py", [folder])
    assert not reload.is_code(tmp_path / "tasks.py", [folder])


def test_the_package_of_an_app_is_watched_or_the_folder_of_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop" / "jobs").mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "tasks.py").write_text("raise RuntimeError('imported')")
    monkeypatch.chdir(tmp_path)
    assert reload.folders_of("shop.jobs.mail") == [tmp_path / "shop"]
    assert reload.folders_of("tasks") == [tmp_path]
    assert reload.folders_of("not_there_yet") == [tmp_path]


def test_without_watchfiles_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(Invalid, match=r"pip install 'leasemill\[reload\]'"):
        reload.check_installed()
