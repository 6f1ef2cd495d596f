"""A project's own tests, which know nothing of Leasemill, on the day it is added: they pass, exit with 0, ask nothing.

Every run is a process of its own, with Django's test runner or with pytest-django.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

ROOT = Path(__file__).parents[3]
PROJECT = Path(__file__).parent / "newcomer"
DJANGO = ["-m", "django", "test", "tests.contrib.django.newcomer.books.tests"]
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(PROJECT / "pytest.ini"), str(PROJECT)]

pytestmark = pytest.mark.timeout(600)  # three runs, each of which creates databases and migrates them

Run: TypeAlias = Callable[[list[str]], str]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEMILL_", "PYTEST_"))}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "DJANGO_SETTINGS_MODULE": "tests.contrib.django.newcomer.settings",
        "BOOKS_SQLITE": str(tmp_path / "books.sqlite3"),
        "BOOKS_FOLDER": f"file:{tmp_path / 'jobs'}",
    }


@pytest.fixture
def run(environment: dict[str, str], django_server: str) -> Iterator[Run]:
    """Run Python with these arguments on PostgreSQL: it ends with 0, and its test databases are gone unless kept."""
    name = f"books_{os.getpid()}"
    place: dict[str, Any] = conninfo_to_dict(django_server)
    environment |= {"BOOKS_DATABASE": name, "PGUSER": place["user"], "PGHOST": place["host"], "PGPORT": place["port"]}
    with psycopg.connect(django_server, autocommit=True) as admin:
        admin.execute(f"create database {name}".encode())

        def databases() -> list[str]:
            found = admin.execute("select datname from pg_database where datname ~ %s order by 1", [name])
            return [one for (one,) in found.fetchall()]

        def run(arguments: list[str]) -> str:
            shown = completed(arguments, environment)
            assert "--keepdb" in arguments or databases() == [name], shown
            return shown

        yield run
        for one in databases():
            admin.execute(f"drop database {one} with (force)".encode())


def completed(arguments: list[str], environment: dict[str, str]) -> str:
    ended = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    shown = ended.stdout + ended.stderr
    assert ended.returncode == 0, shown
    return shown


def test_the_test_command_passes_and_asks_nothing_the_next_time(run: Run) -> None:
    for _ in range(2):
        shown = run(DJANGO)
        assert "Ran 16 tests" in shown
        assert "Destroying test database" in shown


def test_tests_run_in_parallel_each_with_its_copy_of_the_database(run: Run) -> None:
    assert "Ran 16 tests" in run([*DJANGO, "--parallel", "2"])


def test_a_database_that_is_kept_serves_the_next_run(run: Run) -> None:
    for _ in range(2):
        assert "Ran 16 tests" in run([*DJANGO, "--keepdb"])
    assert "Ran 16 tests" in run([*DJANGO, "--keepdb", "--parallel", "2"])


def test_pytest_passes_and_leaves_no_database(run: Run) -> None:
    assert "19 passed" in run(PYTEST)


def test_with_pytest_a_fixture_runs_jobs_in_the_transaction_of_the_test(run: Run) -> None:
    assert "3 passed" in run([*PYTEST[:-1], str(PROJECT / "books" / "jobs_with_pytest.py")])


@pytest.mark.parametrize("arguments", [[*DJANGO, "--parallel", "2"], PYTEST], ids=["django", "pytest"])
def test_the_same_holds_on_sqlite_with_jobs_in_a_folder(arguments: list[str], environment: dict[str, str]) -> None:
    environment["BOOKS_DATABASE"] = "sqlite"
    completed(arguments, environment)
    assert not Path(environment["BOOKS_FOLDER"].removeprefix("file:")).exists(), "a test used the project's store"
