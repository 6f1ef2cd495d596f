"""Effects in a database that is not the store's, when the worker is killed behind them or stopped before them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.lab.processes import wait_until
from tests.process import jobs
from tests.process.support import Scene


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "books.db"
    with closing(sqlite3.connect(path)) as books, books:
        books.execute("create table booked (worker text)")
    return path


def booked(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as books:
        return [worker for (worker,) in books.execute("select worker from booked order by rowid")]


@pytest.mark.parametrize(("is_guarded", "expected"), [(False, ["a", "b"]), (True, ["a"])])
def test_a_worker_that_is_killed_between_effect_and_report(
    scene: Scene, database: Path, is_guarded: bool, expected: list[str]
) -> None:
    handle = jobs.books_elsewhere.enqueue(str(database), is_guarded, waits_first=False)
    a = scene.worker("a", "--queue", "hit")
    wait_until(lambda: scene.trail.marks("committed", worker="a", job=handle.id), "the effect")
    a.kill()
    scene.worker("b")
    scene.await_state(handle)
    assert booked(database) == expected
    assert len(scene.trail.marks("began", job=handle.id)) == 2


@pytest.mark.parametrize(("is_guarded", "expected"), [(False, ["b", "a"]), (True, ["b"])])
def test_a_worker_that_is_stopped_before_its_effect_and_goes_on_when_another_has_applied_it(
    scene: Scene, database: Path, is_guarded: bool, expected: list[str]
) -> None:
    handle = jobs.books_elsewhere.enqueue(str(database), is_guarded, waits_first=True)
    a = scene.worker("a", "--queue", "hit")
    scene.await_began(handle, a)
    a.stop(lambda: scene.trail.unfinished("a"))
    scene.worker("b")
    scene.await_state(handle)
    scene.open_gate("first")
    a.resume()
    wait_until(lambda: not scene.trail.unfinished("a"), "the stopped handler to end")
    assert booked(database) == expected
