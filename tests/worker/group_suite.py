"""Groups and chains as a running worker carries them out; run on every store."""

from __future__ import annotations

import asyncio

import pytest

from leasemill import PREVIOUS, App, Context, Fail, GroupProgress, JobState, Retry, chain
from leasemill.kernel.commands import JobFilter
from leasemill.testing.rules import rule
from tests.worker.support import working

ROWS = 300
LIMIT_S = 60


def over(total: int, **counts: int) -> GroupProgress:
    none = {"succeeded": 0, "failed": 0, "dead": 0, "cancelled": 0, "unfinished": 0}
    return GroupProgress(total, **{**none, **counts}, is_sealed=True, is_over=True)


class GroupSuite:
    """A store's tests give the `app`; its worker runs beside the test."""

    @pytest.fixture
    def mended(self) -> set[int]:
        return set()

    @pytest.fixture(autouse=True)
    def declared(self, app: App, mended: set[int]) -> None:
        @app.job(queue="rows", retry=Retry(max=2, base=0, cap=0))
        async def load(ctx: Context, row: int) -> int:
            if row % 100 == 7 and row not in mended:
                raise Fail(f"row {row}")
            if row % 10 == 3 and ctx.retries == 0:
                raise ValueError("at first")
            return row

        @app.job(queue="rows")
        def load_file(ctx: Context, rows: int) -> int:
            with ctx.commit() as tx:
                tx.set_result(rows)
                for row in range(rows):
                    ctx.group.enqueue(load.call(10 * row))
            return rows

        @app.job(queue="rows")
        async def split(ctx: Context, rows: int) -> None:
            async with ctx.commit() as tx:
                tx.enqueue(report, "beside")
                for row in range(rows):
                    ctx.group.enqueue(chain(load.call(10 * row), double.call(PREVIOUS)))

        @app.job(queue="other")
        async def double(number: int) -> int:
            return 2 * number

        @app.job(queue="callbacks")
        def report(name: str) -> str:
            return f"report {name}"

        @app.job(queue="callbacks")
        async def notify(name: str) -> str:
            return f"end {name}"

    @rule("B1", "B2")
    async def test_callbacks_run_when_all_members_have_ended(self, app: App, mended: set[int]) -> None:
        load, report, notify = (app.jobs[name] for name in ("load", "report", "notify"))
        async with app.group("many", then=report.call("many"), on_end=notify.call("many")) as group:
            await group.aenqueue_many(load.call(row) for row in range(ROWS))
        async with working(app, concurrency=20):
            assert await group.await_end(LIMIT_S) == over(ROWS, succeeded=ROWS - 3, failed=3)
            assert await app.handle("many/end").aresult(LIMIT_S) == "end many"
            assert await asyncio.to_thread(app.store.job, "many/then") is None
            mended.update((7, 107, 207))
            await asyncio.to_thread(app.store.redrive, JobFilter(group="many"), by="ann", reason="mended")
            assert await group.await_end(LIMIT_S) == over(ROWS, succeeded=ROWS)
            assert await app.handle("many/then").aresult(LIMIT_S) == "report many"
            assert (await app.handle("many/end").arecord()).attempt == 1

    @rule("B5")
    @pytest.mark.parametrize(("kind", "total"), [("load_file", 12), ("split", 22)])
    async def test_members_that_members_add_are_waited_for(self, app: App, kind: str, total: int) -> None:
        async with app.group("files", then=app.jobs["report"].call("files")) as group:
            await group.aenqueue_many(app.jobs[kind].call(5) for _ in range(2))
        async with working(app):
            assert await group.await_end(LIMIT_S) == over(total, succeeded=total)
            assert await app.handle("files/then").aresult(LIMIT_S) == "report files"
        then = await app.handle("files/then").arecord()
        members = (await asyncio.to_thread(app.store.jobs, JobFilter(group="files"))).jobs
        assert then.created_at >= max(job.executions[-1].finished_at or 0 for job in members)

    @rule("B6")
    async def test_a_chain_runs_to_its_end_over_queues(self, app: App) -> None:
        load, double = app.jobs["load"], app.jobs["double"]
        waited = await chain(load.call(13), double.call(PREVIOUS), double.call(PREVIOUS)).aenqueue()
        failed = await chain(load.call(7), double.call(PREVIOUS)).aenqueue()
        async with working(app):
            assert await waited.aresult(LIMIT_S) == 52
            assert await asyncio.to_thread(waited.result, LIMIT_S) == 52
            with pytest.raises(Exception, match="failed: Fail: row 7"):
                await failed.aresult(LIMIT_S)
        assert await failed.astatus() is JobState.FAILED

    @rule("B3")
    async def test_a_group_that_is_cancelled_while_it_runs_ends(self, app: App) -> None:
        began = asyncio.Event()

        @app.job(queue="rows")
        async def sleeps() -> None:
            began.set()
            await asyncio.sleep(3600)

        async with app.group(
            "long", then=app.jobs["report"].call("long"), on_end=app.jobs["notify"].call("long")
        ) as group:
            await group.aenqueue_many(sleeps.call() for _ in range(30))
        async with working(app, concurrency=5):
            await asyncio.wait_for(began.wait(), LIMIT_S)
            assert await group.acancel("enough", by="ann") == 30
            assert await group.await_end(LIMIT_S) == over(30, cancelled=30)
            assert await app.handle("long/end").aresult(LIMIT_S) == "end long"
        assert await asyncio.to_thread(app.store.job, "long/then") is None
