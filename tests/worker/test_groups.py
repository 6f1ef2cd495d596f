"""Groups and chains in a running worker, in memory and on a folder. PostgreSQL: tests/store/postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasemill import App, Context
from leasemill.kernel import commands as c
from leasemill.testing.rules import rule
from tests.worker.group_suite import GroupSuite
from tests.worker.support import FaultyStore, drained


class TestMemory(GroupSuite):
    @pytest.fixture
    def app(self) -> Iterator[App]:
        with App("memory:") as made:
            yield made


class TestFile(GroupSuite):
    @pytest.fixture
    def app(self, tmp_path: Path) -> Iterator[App]:
        with App(f"file:{tmp_path / 'jobs'}") as made:
            yield made


@rule("B5", "L6")
@pytest.mark.parametrize("fault", ["before", "after"])
async def test_members_are_counted_once_when_the_reply_to_their_commit_is_lost(
    app: App, store: FaultyStore, fault: str
) -> None:
    @app.job
    async def load(row: int) -> int:
        return row

    @app.job
    async def split(ctx: Context) -> None:
        async with ctx.commit():
            for row in range(3):
                ctx.group.enqueue(load.call(row))

    @app.job
    async def report() -> None: ...

    async with app.group("files", then=report.call()) as group:
        await group.aenqueue(split.call())
    store.fail(c.Commit, "before" if fault == "before" else "after")
    store.fail(c.Ack, "after")
    await drained(app)
    progress = group.status()
    assert (progress.total, progress.succeeded, progress.is_over) == (4, 4, True)
    assert len(store.jobs(c.JobFilter(kind="report")).jobs) == 1


@rule("B1", "L6")
async def test_members_are_counted_once_when_the_reply_to_their_enqueue_is_lost(app: App, store: FaultyStore) -> None:
    @app.job
    async def load(row: int) -> int:
        return row

    calls = [load.call(row) for row in range(3)]
    group = app.group("files")
    store.fail(c.CreateGroup, "after")
    store.fail(c.Enqueue, "after")
    with pytest.raises(Exception, match="the reply was lost"):
        group.enqueue_many(calls)
    with pytest.raises(Exception, match="the reply was lost"):
        group.enqueue_many(calls)
    assert [handle.is_duplicate for handle in group.enqueue_many(calls)] == [True] * 3
    store.fail(c.SealGroup, "after")
    with pytest.raises(Exception, match="the reply was lost"):
        group.seal()
    assert group.seal().total == 3
