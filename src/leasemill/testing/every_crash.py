"""Is a handler safe? Run its job once for every point at which a worker can die, and compare the results.

The job is first run without a crash; that shows which points its runs reach, follow-up jobs included, and what the
effect is. Then it is run again for each of these points, on an empty store, and must have the same effect.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeAlias

from leasemill.api.app import App
from leasemill.errors import Invalid
from leasemill.testing.binding import Binder, StoreKind
from leasemill.testing.crash import CrashingStore, CrashPoint
from leasemill.testing.jobs import Jobs

Point: TypeAlias = tuple[str, CrashPoint]
"""A kind, and where its run dies."""
Steps: TypeAlias = Generator[Callable[[], Any], Any, list[Point]]


class EveryCrash:
    """The check that the fixtures `leasemill_every_crash` and `leasemill_aevery_crash` call."""

    def __init__(self, bind: Binder) -> None:
        self._bind = bind

    def __call__(
        self,
        app: App,
        enqueue: Callable[[], Any],
        *,
        effect: Callable[[], Any],
        reset: Callable[[], Any] | None = None,
        store: StoreKind | None = None,
    ) -> list[Point]:
        """Kill the job that `enqueue()` makes, and its follow-ups, at every point; the effect must be there once.

        `effect()` returns what the job has done, in a form that `==` compares. `reset()` undoes it: it is called before
        each run. `store`: "memory", "file" or "postgresql". Returns the kinds and points; raises AssertionError with
        each point at which the effect differs from that of a run without a crash.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        steps = self._steps(app, enqueue, effect, reset, store, Jobs.finish)
        try:
            step = next(steps)
            while True:
                step = steps.send(step())
        except StopIteration as end:
            points: list[Point] = end.value
            return points
        finally:
            steps.close()

    async def in_async_code(
        self,
        app: App,
        enqueue: Callable[[], Awaitable[Any] | Any],
        *,
        effect: Callable[[], Awaitable[Any] | Any],
        reset: Callable[[], Awaitable[Any] | Any] | None = None,
        store: StoreKind | None = None,
    ) -> list[Point]:
        """The same in async code; each function may be async."""
        __tracebackhide__ = True
        steps = self._steps(app, enqueue, effect, reset, store, Jobs.afinish)
        try:
            step = next(steps)
            while True:
                answer = step()
                step = steps.send(await answer if inspect.isawaitable(answer) else answer)
        except StopIteration as end:
            points: list[Point] = end.value
            return points
        finally:
            steps.close()

    def _steps(
        self,
        app: App,
        enqueue: Callable[[], Any],
        effect: Callable[[], Any],
        reset: Callable[[], Any] | None,
        store: StoreKind | None,
        finish: Callable[[Jobs], Any],
    ) -> Steps:
        """Yield what is to be called, in sequence; its result is sent back."""
        __tracebackhide__ = True
        bind, kind = self._bind, store or self._bind.kind
        if reset is not None:
            yield reset
        before = deepcopy((yield effect))
        with bind(app, store=kind) as jobs, _observed(jobs) as observed:
            yield enqueue
            yield lambda: finish(jobs)
            after = deepcopy((yield effect))
            _check_undisturbed(jobs, observed, before, after)
        differences: list[str] = []
        for victim, point in observed.reached:
            if reset is not None:
                yield reset
            _check_reset(before, (yield effect))
            with bind(app, store=kind) as jobs:
                yield enqueue
                with jobs.crash_at(point, of=victim):
                    yield lambda jobs=jobs: finish(jobs)  # type: ignore[misc]
                yield lambda jobs=jobs: finish(jobs)  # type: ignore[misc]
                found = deepcopy((yield effect))
                differences += _differences(f"{point} of {victim}", jobs, after, found)
        if differences:
            raise AssertionError("a crash changes the effect of the job:\n" + "\n".join(differences))
        return list(observed.reached)


@contextmanager
def _observed(jobs: Jobs) -> Iterator[CrashingStore]:
    """Run without a crash, while the store records which points are reached."""
    store = CrashingStore(jobs.app.store, jobs.clock)
    with jobs.app.bound_to(store):
        yield store


def _check_undisturbed(jobs: Jobs, observed: CrashingStore, before: object, after: object) -> None:
    """Refuse a job without a visible effect: no crash could make a difference."""
    if not observed.reached:
        raise Invalid("no job ran: enqueue() must enqueue a job of this app")
    if failures := jobs.failures:
        raise AssertionError(f"{failures[0].kind} fails without any crash: {failures[0].error}")
    if before == after:
        raise Invalid(
            f"effect() returns {after!r} before and after the job ran, so no crash could change it: let it return what "
            "the job has done"
        )


def _check_reset(before: object, now: object) -> None:
    if now != before:
        raise Invalid(
            f"effect() returns {now!r} before the next run, and returned {before!r} before the first: pass reset=..., "
            "a function that undoes what the job did"
        )


def _differences(where: str, jobs: Jobs, after: object, found: object) -> list[str]:
    lines = [] if found == after else [f"  {where}: effect() is {found!r}, and {after!r} without a crash"]
    lines += [f"  {where}: {one.kind} ended {one.state.value}: {one.error}" for one in jobs.failures]
    lines += [f"  {where}: {kind} has not ended" for kind in jobs.unfinished]
    return lines
