"""`GroupHandle`: jobs that end together, and what is enqueued when they have. Rules B1 to B5.

    with app.group("import-17", then=report.call("17"), on_end=notify.call("17")) as group:
        group.enqueue_many(load.call(row) for row in rows)

The store counts members where they are enqueued and where they end; nothing here does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from leasemill.api.call import Call, HasStore, checked_call
from leasemill.api.enqueue_batch import StreamCount, aenqueue_all, aenqueue_stream, enqueue_all, enqueue_stream
from leasemill.api.handle import BY_CODE, Deadline, JobHandle, read_results
from leasemill.api.policy import Duration
from leasemill.errors import Invalid, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.model import UNENDED_STATES, ChainedJob
from leasemill.store.base import Store, Watch
from leasemill.store.operations import acancelled, cancelled

if TYPE_CHECKING:
    from leasemill.api.commit import Gathered

R = TypeVar("R")

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
"""A group is read again after this time, even if nothing has woken its waiter."""


class GroupProgress(Struct, frozen=True):
    """The number of a group's members, by state. `is_over`: it is sealed, and no member is unfinished."""

    total: int
    succeeded: int
    failed: int
    dead: int
    cancelled: int
    unfinished: int
    is_sealed: bool
    is_over: bool

    @property
    def has_succeeded(self) -> bool:
        return self.is_over and self.succeeded == self.total


class GroupHandle:
    """A group in the store. It is created when it is entered with `with` or `async with`, or first used."""

    __slots__ = ("_app", "_command", "_is_created", "id")

    def __init__(self, app: HasStore, command: c.CreateGroup, *, is_created: bool) -> None:
        self.id = command.group_id
        self._app = app
        self._command = command
        self._is_created = is_created

    def __repr__(self) -> str:
        return f"<group {self.id}>"

    @property
    def _store(self) -> Store:
        return self._app.store

    # Its life

    def create(self) -> Self:
        """Create the group if it does not exist; the same id and callbacks again change nothing."""
        if not self._is_created:
            self._store.run(self._command)
            self._is_created = True
        return self

    async def acreate(self) -> Self:
        """`create` in async code."""
        if not self._is_created:
            await self._store.arun(self._command)
            self._is_created = True
        return self

    def seal(self) -> GroupProgress:
        """Allow no more members, except those that members add. A group that is not sealed never ends (B3)."""
        return _progress(self.create()._store.run(c.SealGroup(self.id)))

    async def aseal(self) -> GroupProgress:
        """`seal` in async code."""
        return _progress(await (await self.acreate())._store.arun(c.SealGroup(self.id)))

    def __enter__(self) -> Self:
        return self.create()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.seal()
                return
        except BaseException as failed:
            self._note_open(failed)
            raise
        self._note_open(error)

    async def __aenter__(self) -> Self:
        return await self.acreate()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.aseal()
                return
        except BaseException as failed:
            self._note_open(failed)
            raise
        self._note_open(error)

    def _note_open(self, error: BaseException) -> None:
        error.add_note(
            f"group {self.id!r} is not sealed, so it does not end: enqueue what is missing and seal it with "
            f"app.groups.get({self.id!r}).seal(), or run `leasemill groups seal {self.id}` or "
            f"`leasemill groups cancel {self.id} --reason …`"
        )

    # Members

    def enqueue(self, call: Call[R]) -> JobHandle[R]:
        """Enqueue a call, or a chain, as a member. Every job of a chain is a member."""
        return self.enqueue_many([call])[0]

    async def aenqueue(self, call: Call[R]) -> JobHandle[R]:
        """`enqueue` in async code."""
        return (await self.aenqueue_many([call]))[0]

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Enqueue calls of any kinds as members, in as few steps as the store allows."""
        return enqueue_all(self.create()._app, (checked_call(call).in_group(self.id) for call in calls))

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """`enqueue_many` in async code."""
        await self.acreate()
        return await aenqueue_all(self._app, (checked_call(call).in_group(self.id) for call in calls))

    def enqueue_stream(self, calls: Iterable[Call[Any]]) -> StreamCount:
        """Enqueue any number of calls as members, as they come; returns the counts, keeps no call in memory."""
        return enqueue_stream(self.create()._app, (checked_call(call).in_group(self.id) for call in calls))

    async def aenqueue_stream(self, calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]]) -> StreamCount:
        """`enqueue_stream` in async code; the calls may come from an async generator."""
        await self.acreate()
        return await aenqueue_stream(self._app, _members(self.id, calls))

    # Looking at it, and ending it

    def status(self) -> GroupProgress:
        """Return the number of members, by state."""
        return read_progress(self._store, self.id)

    async def astatus(self) -> GroupProgress:
        """`status` in async code."""
        return await aread_progress(self._store, self.id)

    def wait(self, timeout: Duration | None = None) -> GroupProgress:
        """Wait until the group is sealed and all members have ended; TimeoutError after `timeout`."""
        waiting = _Waiting(self.id, timeout)
        while not (progress := self.status()).is_over:
            left_s = waiting.left_s(progress)
            page = self._store.run(waiting.last_unfinished)
            if not page.jobs:
                time.sleep(min(left_s, waiting.pause_s()))
                continue
            watch = self._store.watch_end(page.jobs[0].spec.id)
            try:
                if _is_unfinished(self._store.job(page.jobs[0].spec.id)):
                    watch.wait(left_s)
            finally:
                watch.close()
        return progress

    async def await_end(self, timeout: Duration | None = None) -> GroupProgress:  # noqa: ASYNC109 (as `wait`)
        """`wait` in async code."""
        waiting = _Waiting(self.id, timeout)
        while not (progress := await self.astatus()).is_over:
            left_s = waiting.left_s(progress)
            page = await self._store.arun(waiting.last_unfinished)
            if not page.jobs:
                await asyncio.sleep(min(left_s, waiting.pause_s()))
                continue
            watch: Watch = self._store.watch_end(page.jobs[0].spec.id)
            try:
                if _is_unfinished(await self._store.ajob(page.jobs[0].spec.id)):
                    await watch.wait_async(left_s)
            finally:
                watch.close()
        return progress

    def results(self, timeout: Duration | None = None) -> list[Any]:
        """Wait until the group is over, and return the results of its members in the order they were enqueued.

        They are plain JSON values; of a chain, that of its last job. Raises JobFailed, JobDead or JobCancelled of the
        first member that ended without success, NotFound if members are no longer kept, TimeoutError after `timeout`.
        """
        self.wait(timeout)
        return read_results(self._store, self.id)

    async def aresults(self, timeout: Duration | None = None) -> list[Any]:  # noqa: ASYNC109 (as `results`)
        """`results` in async code."""
        await self.await_end(timeout)
        return await read_results.on_loop(self._store, self.id)

    def cancel(self, reason: str = BY_CODE, *, by: str = "application") -> int:
        """Seal the group and cancel its members that have not ended, and the groups in it; returns how many jobs were
        cancelled.

        Its `on_end` is enqueued when the last member has ended; its `then` is not."""
        return sum(len(operated.job_ids) for operated in cancelled(self._store, self.id, by, reason))

    async def acancel(self, reason: str = BY_CODE, *, by: str = "application") -> int:
        """`cancel` in async code."""
        count = 0
        async for operated in acancelled(self._store, self.id, by, reason):
            count += len(operated.job_ids)
        return count


class AppGroups:
    """`app.groups`: groups made elsewhere."""

    __slots__ = ("_app",)

    def __init__(self, app: HasStore) -> None:
        self._app = app

    def get(self, group_id: str) -> GroupHandle:
        """The group with this id; NotFound if there is none."""
        return self._found(_known(self._app.store.run(c.GetGroup(group_id)), group_id))

    async def aget(self, group_id: str) -> GroupHandle:
        """`get` in async code."""
        return self._found(_known(await self._app.store.arun(c.GetGroup(group_id)), group_id))

    def _found(self, view: c.GroupView) -> GroupHandle:
        command = c.CreateGroup(view.id, view.then, view.on_end, view.parent)
        return GroupHandle(self._app, command, is_created=True)


class OwnGroup:
    """`ctx.group`: the group that the running job is a member of."""

    __slots__ = ("_commit", "_store", "id")

    def __init__(self, store: Store, group_id: str, commit: Gathered | None) -> None:
        self.id = group_id
        self._store = store
        self._commit = commit

    def __repr__(self) -> str:
        return f"<group {self.id}>"

    def enqueue(self, call: Call[R]) -> JobHandle[R]:
        """Add a member with the commit of this job, inside `ctx.commit()`: also when the group is sealed (B5)."""
        if self._commit is None:
            raise Invalid(
                "a job adds members to its group with its commit: write `with ctx.commit():` (`async with` in async "
                "handlers) and call ctx.group.enqueue(...) inside the block"
            )
        return self._commit.enqueue_call(checked_call(call).in_group(self.id))

    def status(self) -> GroupProgress:
        """Return the number of members, by state; this job is one of the unfinished."""
        return read_progress(self._store, self.id)

    async def astatus(self) -> GroupProgress:
        """`status` in async code."""
        return await aread_progress(self._store, self.id)


def create_command(
    app: HasStore, group_id: str | None, then: Call[Any] | None, on_end: Call[Any] | None, parent: str | None
) -> c.CreateGroup:
    """Return the command that `app.group(...)` sends."""
    if group_id is not None and not isinstance(group_id, str):
        raise Invalid(
            f"the id of a group is {group_id!r}; write text, or none, and enqueue members inside the block: "
            "with app.group() as group: group.enqueue_many(calls)"
        )
    for call in (then, on_end):
        if call is not None:
            checked_call(call).check_alone()
    return c.CreateGroup(
        app.store.entropy.new_id() if group_id is None else group_id,
        None if then is None else _callback(app, then, "the `then` of a group"),
        None if on_end is None else _callback(app, on_end, "the `on_end` of a group"),
        parent,
    )


def _callback(app: HasStore, call: Call[Any], role: str) -> ChainedJob:
    template = call.template(role)
    return replace(template, headers=app.hooks.follow_up_headers(template.headers))


def read_progress(store: Store, group_id: str) -> GroupProgress:
    return _progress(_known(store.run(c.GetGroup(group_id)), group_id))


async def aread_progress(store: Store, group_id: str) -> GroupProgress:
    return _progress(_known(await store.arun(c.GetGroup(group_id)), group_id))


def _known(view: c.GroupView | None, group_id: str) -> c.GroupView:
    if view is None:
        raise NotFound(f"there is no group {group_id!r}: it was never created, or retention has removed it")
    return view


def _progress(view: c.GroupView) -> GroupProgress:
    return GroupProgress(
        view.total,
        view.succeeded,
        view.failed,
        view.dead,
        view.cancelled,
        view.unfinished,
        view.sealed_at is not None,
        view.is_over,
    )


def _members(
    group_id: str, calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]]
) -> Iterable[Call[Any]] | AsyncIterable[Call[Any]]:
    if isinstance(calls, AsyncIterable):
        return _amembers(group_id, calls)
    return (checked_call(call).in_group(group_id) for call in calls)


async def _amembers(group_id: str, calls: AsyncIterable[Call[Any]]) -> AsyncIterator[Call[Any]]:
    async for call in calls:
        yield checked_call(call).in_group(group_id)


def _is_unfinished(job: Any) -> bool:
    return job is not None and job.state in UNENDED_STATES


class _Waiting:
    """The state of a waiter: it waits for the youngest member that has not ended, and looks again. Others may end
    later."""

    def __init__(self, group_id: str, timeout: Duration | None) -> None:
        unfinished = c.JobFilter(group=group_id, states=UNENDED_STATES)
        self.last_unfinished = c.ListJobs(unfinished, limit=1, newest_first=True)
        self._deadline = Deadline(f"group {group_id!r}", timeout)
        self._pause_s = FIRST_PAUSE_S

    def left_s(self, progress: GroupProgress) -> float:
        sealed = "sealed" if progress.is_sealed else "not sealed"
        state = f"{sealed}, {progress.unfinished} of {progress.total} members are unfinished"
        return min(self._deadline.left_s(state), LONGEST_PAUSE_S)

    def pause_s(self) -> float:
        """Nothing can be watched: the group is open and empty, or waits for another group in it."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s
