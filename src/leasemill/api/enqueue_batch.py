"""Calls that are sent in batches, each of them one command. Nothing here decides what a job is."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from leasemill.api.call import Call, HasStore, checked_call
from leasemill.api.handle import JobHandle
from leasemill.api.hooks import Tracing
from leasemill.errors import JobConflict, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.store.base import Store

R = TypeVar("R")

BATCH_BYTES: Final = 16 * 1024 * 1024
STREAM_ITEMS: Final = 1_000
"""Calls of a stream in one batch: few enough not to block the event loop while they are made."""


def enqueue_all(app: HasStore, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """Enqueue calls of any kinds; the first conflict is raised after all have been sent."""
    return _without_conflict(send_all(app, calls))


def send_all(app: HasStore, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """`enqueue_all` for callers that want each outcome: a conflict is one of them, and is not raised."""
    store, tracing = app.store, app.hooks.tracing
    handles: list[JobHandle[R]] = []
    for batch in _batches(calls):
        try:
            outcomes = _send(store, tracing, _command(batch))
        except Unavailable as error:
            _note_how_to_repeat(error, batch)
            raise
        handles += _handles(store, batch, outcomes)
    return handles


async def aenqueue_all(app: HasStore, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """`enqueue_all` in async code."""
    store, tracing = app.store, app.hooks.tracing
    handles: list[JobHandle[R]] = []
    for batch in _batches(calls):
        try:
            outcomes = await _asend(store, tracing, _command(batch))
        except Unavailable as error:
            _note_how_to_repeat(error, batch)
            raise
        handles += _handles(store, batch, outcomes)
    return _without_conflict(handles)


class StreamCount(Struct, frozen=True):
    """The result of a stream of calls: how many made a job, and how many made none because their id was known or
    another job holds their unique key."""

    jobs: int = 0
    duplicates: int = 0

    @property
    def total(self) -> int:
        return self.jobs + self.duplicates


def enqueue_stream(app: HasStore, calls: Iterable[Call[Any]]) -> StreamCount:
    """Enqueue calls of any kinds, a batch at a time; the first conflict is raised after all have been sent."""
    store, tracing = app.store, app.hooks.tracing
    counting = _Counting()
    for batch in _batches(calls, STREAM_ITEMS):
        with counting.noting(batch):
            counting.add(_send(store, tracing, _command(batch)))
    return counting.result()


async def aenqueue_stream(app: HasStore, calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]]) -> StreamCount:
    """`enqueue_stream` in async code."""
    store, tracing = app.store, app.hooks.tracing
    counting = _Counting()
    async for batch in _abatches(calls):
        with counting.noting(batch):
            counting.add(await _asend(store, tracing, _command(batch)))
    return counting.result()


class _Counting:
    """The counts of the batches that were sent."""

    def __init__(self) -> None:
        self._jobs = 0
        self._duplicates = 0
        self._conflict: str | None = None

    def add(self, outcomes: list[c.EnqueueOutcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, c.Conflict):
                self._conflict = self._conflict or outcome.job_id
            elif isinstance(outcome, c.Duplicate | c.Merged):
                self._duplicates += 1
            else:
                self._jobs += 1

    @contextmanager
    def noting(self, batch: list[Call[Any]]) -> Iterator[None]:
        """Add to an error what a stream that breaks off has done: its calls are gone, so a repeat needs the caller's
        ids."""
        try:
            yield
        except Unavailable as error:
            error.add_note(
                f"{self._jobs + self._duplicates} calls were enqueued; the next {len(batch)} may or may not be, and "
                "none after them: calls with a job_id of their own can be repeated from the start"
            )
            raise

    def result(self) -> StreamCount:
        if self._conflict is not None:
            raise JobConflict(self._conflict)
        return StreamCount(self._jobs, self._duplicates)


def _command(batch: list[Call[R]]) -> c.Enqueue:
    for call in batch:
        if call.result_name is not None:
            call.check_alone()
    firsts = [call.is_sent_first() for call in batch]  # of every call, so that none counts as new again
    return c.Enqueue([call.spec for call in batch], are_new=all(firsts))


def _send(store: Store, tracing: Tracing | None, command: c.Enqueue) -> list[c.EnqueueOutcome]:
    if tracing is None:
        return store.run(command)
    with tracing.enqueue(command) as call:
        outcomes = store.run(call.command)
        call.answered(outcomes)
    return outcomes


async def _asend(store: Store, tracing: Tracing | None, command: c.Enqueue) -> list[c.EnqueueOutcome]:
    if tracing is None:
        return await store.arun(command)
    with tracing.enqueue(command) as call:
        outcomes = await store.arun(call.command)
        call.answered(outcomes)
    return outcomes


class _Batch(Generic[R]):
    """Calls that are sent together: as many calls and bytes as one command takes."""

    def __init__(self, most: int) -> None:
        self.calls: list[Call[R]] = []
        self._most = most
        self._size = 0

    def full_with(self, call: Call[R]) -> list[Call[R]] | None:
        """Add a call; returns those before it if it begins the next batch."""
        size = len(checked_call(call).spec.payload)
        full: list[Call[R]] | None = None
        if len(self.calls) == self._most or (self._size + size > BATCH_BYTES and self.calls):
            full, self.calls, self._size = self.calls, [], 0
        self.calls.append(call)
        self._size += size
        return full


def _batches(calls: Iterable[Call[R]], most: int = BATCH_ITEMS) -> Iterator[list[Call[R]]]:
    batch = _Batch[R](most)
    for call in calls:
        if (full := batch.full_with(call)) is not None:
            yield full
    if batch.calls:
        yield batch.calls


async def _abatches(calls: Iterable[Call[R]] | AsyncIterable[Call[R]]) -> AsyncIterator[list[Call[R]]]:
    if not isinstance(calls, AsyncIterable):
        for one in _batches(calls, STREAM_ITEMS):
            yield one
        return
    batch = _Batch[R](STREAM_ITEMS)
    async for call in calls:
        if (full := batch.full_with(call)) is not None:
            yield full
    if batch.calls:
        yield batch.calls


def _handles(store: Store, batch: list[Call[R]], outcomes: list[c.EnqueueOutcome]) -> list[JobHandle[R]]:
    """U1: of a call that was merged, that of the job that holds its key."""
    return [call.handle(store, outcome.job_id, outcome) for call, outcome in zip(batch, outcomes, strict=True)]


def _without_conflict(handles: list[JobHandle[R]]) -> list[JobHandle[R]]:
    for handle in handles:
        if isinstance(handle.outcome, c.Conflict):
            raise JobConflict(handle.outcome.job_id)
    return handles


def _note_how_to_repeat(error: Unavailable, batch: list[Call[R]]) -> None:
    if len(batch) == 1:
        error.add_note(f"the job may or may not be enqueued: repeat with .options(job_id={batch[0].spec.id!r})")
