"""Streams of calls: as many as there are, none of them held."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from leasemill import App, Call, Invalid, JobConflict, JobType, StreamCount, Unavailable
from leasemill.api.enqueue_batch import STREAM_ITEMS
from leasemill.kernel import commands as c
from tests.worker.support import FaultyStore


class WeakCall(Call[int]):
    """A call that can be watched."""

    __slots__ = ("__weakref__",)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def app(store: FaultyStore) -> App:
    return App(store=store)


@pytest.fixture
def load(app: App) -> JobType[[int], int]:
    @app.job
    def load(row: int) -> int:
        return row

    return load


def rows(load: JobType[[int], int], numbers: range) -> Iterator[Call[int]]:
    return (load.options(job_id=f"row-{number}").call(number) for number in numbers)


def test_no_call_is_held_after_its_batch(app: App, load: JobType[[int], int]) -> None:
    alive: weakref.WeakSet[Call[int]] = weakref.WeakSet()
    most = 0

    def calls() -> Iterator[Call[int]]:
        nonlocal most
        for number in range(5 * STREAM_ITEMS):
            made = load.call(number)
            call = WeakCall(made.app, made.spec, made.arguments, has_drawn_id=True)
            alive.add(call)
            most = max(most, len(alive))
            yield call

    assert app.enqueue_stream(calls()) == StreamCount(5 * STREAM_ITEMS)
    assert most <= 2 * STREAM_ITEMS + 1, "one that is sent, one that is made"
    gc.collect()
    assert len(alive) == 0


def test_a_stream_is_sent_while_it_comes(app: App, store: FaultyStore, load: JobType[[int], int]) -> None:
    sent: list[int] = []

    def calls() -> Iterator[Call[int]]:
        for number in range(2 * STREAM_ITEMS + 1):
            sent.append(len(store.commands(c.Enqueue)))
            yield load.call(number)

    count = load.enqueue_stream(calls())
    assert (count.jobs, count.duplicates, count.total) == (2 * STREAM_ITEMS + 1, 0, 2 * STREAM_ITEMS + 1)
    assert (sent[STREAM_ITEMS], sent[-1]) == (0, 1)
    assert len(store.commands(c.Enqueue)) == 3


def test_an_empty_stream_sends_nothing(app: App, store: FaultyStore) -> None:
    async def none() -> AsyncIterator[Call[int]]:
        for call in list[Call[int]]():
            yield call

    assert app.enqueue_stream([]) == StreamCount()
    assert asyncio.run(app.aenqueue_stream(none())) == StreamCount()
    assert store.commands(c.Enqueue) == []


def test_the_first_conflict_is_raised_when_all_have_been_sent(app: App, load: JobType[[int], int]) -> None:
    load.options(job_id="row-3").enqueue(-3)
    load.options(job_id="row-5").enqueue(-5)
    with pytest.raises(JobConflict, match="row-3"):
        app.enqueue_stream(rows(load, range(STREAM_ITEMS + 10)))
    assert app.handle(f"row-{STREAM_ITEMS + 9}").record().spec.kind == "load"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stream_that_breaks_off_reports_how_far_it_came(
    app: App, store: FaultyStore, load: JobType[[int], int], is_async: bool
) -> None:
    numbers = range(2 * STREAM_ITEMS + 50)

    def send(calls: Iterator[Call[Any]]) -> StreamCount:
        return asyncio.run(app.aenqueue_stream(calls)) if is_async else app.enqueue_stream(calls)

    def breaking_off() -> Iterator[Call[Any]]:
        for number, call in enumerate(rows(load, numbers)):
            if number == STREAM_ITEMS + 1:
                store.fail(c.Enqueue, "after")
            yield call

    with pytest.raises(Unavailable) as caught:
        send(breaking_off())
    (note,) = caught.value.__notes__
    assert note.startswith(f"{STREAM_ITEMS} calls were enqueued; the next {STREAM_ITEMS} may or may not be, and none ")
    assert send(rows(load, numbers)) == StreamCount(jobs=50, duplicates=2 * STREAM_ITEMS)


def test_what_the_iterator_raises_passes_through_and_what_was_sent_stays(app: App, load: JobType[[int], int]) -> None:
    def calls() -> Iterator[Call[int]]:
        yield from rows(load, range(STREAM_ITEMS + 5))
        raise KeyError("the file ends here")

    with pytest.raises(KeyError):
        app.enqueue_stream(calls())
    assert app.store.job(f"row-{STREAM_ITEMS - 1}") is not None
    assert app.store.job(f"row-{STREAM_ITEMS}") is None


def test_a_call_that_is_wrong_is_refused_where_it_is_made(app: App, load: JobType[..., int]) -> None:
    with pytest.raises(Invalid, match="Expected `int`"):
        app.enqueue_stream(load.call(row) for row in [1, "x"])
