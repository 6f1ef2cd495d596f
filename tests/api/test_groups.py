"""Groups: jobs that end together, their callbacks, and what a member can do with its group."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from leasemill import PREVIOUS, App, Context, Fail, GroupProgress, GroupRefused, JobState, chain, open_store
from leasemill.errors import Invalid, JobFailed, NotFound, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job, LimitUse, Rules
from leasemill.testing.clock import ManualClock
from leasemill.testing.drain import adrain, drain, in_memory
from leasemill.testing.rules import rule

app = App()
failing: set[int] = set()
seen: list[GroupProgress] = []


@app.job(queue="rows", retry=0)
async def load(row: int) -> int:
    if row in failing:
        raise Fail(f"row {row}")
    return row


@app.job(queue="reports", lane="name", priority=4)
async def report(name: str) -> str:
    return name


@app.job
async def notify(name: str) -> str:
    return name


@app.job
async def add_up(group_id: str) -> int:
    return sum(await (await app.groups.aget(group_id)).aresults())


@app.job(queue="rows")
async def double(number: int) -> int:
    return 2 * number


@app.job(queue="rows")
async def splits(ctx: Context, more: int) -> None:
    async with ctx.commit():
        for row in range(more):
            ctx.group.enqueue(load.call(row))
    seen.append(await ctx.group.astatus())


@app.job(queue="rows")
def splits_in_a_thread(ctx: Context, more: int) -> None:
    with ctx.commit() as tx:
        tx.enqueue(notify, "alone")
        handles = [ctx.group.enqueue(chain(load.call(row), double.call(PREVIOUS))) for row in range(more)]
    assert [handle.id for handle in handles] == [f"{ctx.job_id}/{index}/then" for index in range(1, more + 1)]
    seen.append(ctx.group.status())


@app.job(retry=0)
async def splits_without_a_commit(ctx: Context) -> None:
    ctx.group.enqueue(load.call(1))


@app.job(retry=0)
async def asks_for_its_group(ctx: Context) -> str | None:
    return ctx.group_id or ctx.group.id


@pytest.fixture(autouse=True)
def clock() -> Iterator[ManualClock]:
    failing.clear()
    seen.clear()
    with in_memory(app) as made:
        yield made


def found(job_id: str) -> Job | None:
    return app.store.job(job_id)


def progress(**counts: Any) -> GroupProgress:
    none = {"total": 0, "succeeded": 0, "failed": 0, "dead": 0, "cancelled": 0, "unfinished": 0}
    return GroupProgress(**{**none, "is_sealed": True, "is_over": True, **counts})


# Members and callbacks ------------------------------------------------------------------------------------------


@rule("B1", "B2")
def test_callbacks_come_when_all_members_have_succeeded(clock: ManualClock) -> None:
    with app.group("import-17", then=report.call("17"), on_end=notify.call("17")) as group:
        handles = group.enqueue_many(load.call(row) for row in range(10))
        assert group.status() == progress(total=10, unfinished=10, is_sealed=False, is_over=False)
    assert group.status() == progress(total=10, unfinished=10, is_over=False)
    assert found("import-17/then") is None
    drain(app, clock)
    assert [handle.result() for handle in handles] == list(range(10))
    assert group.status() == progress(total=10, succeeded=10)
    assert group.status().has_succeeded
    then, end = found("import-17/then"), found("import-17/end")
    assert then is not None
    assert end is not None
    assert (then.state, end.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert (then.spec.lane, then.spec.priority, then.spec.queue) == ("17", 4, "reports")


async def test_a_group_in_async_code(clock: ManualClock) -> None:
    async with app.group("import-17", then=report.call("17")) as group:
        await group.aenqueue_many([load.call(1), load.call(2)])
        await group.aenqueue(load.call(3))
    assert await group.astatus() == progress(total=3, unfinished=3, is_over=False)
    waiting = asyncio.create_task(group.await_end(timeout=60))
    await adrain(app, clock)
    assert await waiting == progress(total=3, succeeded=3)
    assert await (await app.groups.aget("import-17")).aseal() == progress(total=3, succeeded=3)


def test_the_results_of_a_group_are_in_the_order_of_its_members(clock: ManualClock) -> None:
    with app.group("import-17", then=add_up.call("import-17")) as group:
        handles = group.enqueue_many(load.options(priority=row % 10).call(row) for row in range(2_500))
    drain(app, clock)
    assert group.results(timeout=0) == list(range(2_500)) == [handle.result() for handle in handles]
    assert app.handle("import-17/then").result() == sum(range(2_500))


def test_a_folder_keeps_the_results_of_a_group(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store, app.bound_to(store):
        with app.group("import-17") as group:
            group.enqueue_many(load.call(row) for row in range(1_200))
        drain(app)
    with App(url) as elsewhere:
        assert elsewhere.groups.get("import-17").results(timeout=0) == list(range(1_200))


async def test_of_a_chain_the_last_result_takes_the_place_of_the_first(clock: ManualClock) -> None:
    async with app.group("import-17") as group:
        await group.aenqueue(chain(load.call(1), double.call(PREVIOUS), double.call(PREVIOUS)))
        await group.aenqueue(load.call(2))
        await group.aenqueue(chain(load.call(3), double.call(PREVIOUS)))
    with pytest.raises(TimeoutError, match="sealed, 3 of 3 members are unfinished"):
        await group.aresults(timeout=0)
    await adrain(app, clock)
    assert await group.aresults(timeout=0) == [4, 2, 6]


def test_the_results_of_a_group_with_a_group_in_it_have_that_of_its_callback(clock: ManualClock) -> None:
    with app.group("whole") as whole:
        whole.enqueue(load.call(1))
        with app.group("part", parent="whole", then=report.call("part")) as part:
            part.enqueue(load.call(2))
    drain(app, clock)
    assert (whole.results(timeout=0), part.results(timeout=0)) == ([1, "part"], [2])


def test_results_raise_how_the_first_member_without_success_ended(clock: ManualClock) -> None:
    failing.update({3, 4})
    with app.group("import-17") as group:
        handles = group.enqueue_many(load.call(row) for row in range(5))
    drain(app, clock)
    with pytest.raises(JobFailed, match="row 3") as raised:
        group.results()
    assert raised.value.job_id == handles[3].id


def test_results_that_are_no_longer_kept_are_missed(clock: ManualClock) -> None:
    with app.group("import-17") as group:
        handles = group.enqueue_many(load.call(row) for row in range(3))
    drain(app, clock)
    app.store.purge(c.JobFilter(job_ids=(handles[1].id,)), by="ann", reason="why")
    with pytest.raises(NotFound, match="1 of the 3 members of group 'import-17' are no longer kept"):
        group.results()


@rule("B2")
def test_one_failure_leaves_then_for_a_redrive_and_on_end_comes_once(clock: ManualClock) -> None:
    failing.add(3)
    with app.group("import-17", then=report.call("17"), on_end=notify.call("17")) as group:
        group.enqueue_many(load.call(row) for row in range(5))
    drain(app, clock)
    assert group.status() == progress(total=5, succeeded=4, failed=1)
    assert not group.status().has_succeeded
    assert (found("import-17/then"), found("import-17/end") is not None) == (None, True)
    failing.clear()
    app.store.redrive(c.JobFilter(group="import-17"), by="ann", reason="fixed")
    assert group.status() == progress(total=5, succeeded=4, unfinished=1, is_over=False)
    drain(app, clock)
    assert group.status() == progress(total=5, succeeded=5)
    assert found("import-17/then") is not None
    end = found("import-17/end")
    assert end is not None
    assert end.attempt == 1


@rule("B3")
def test_an_empty_group_ends_when_it_is_sealed(clock: ManualClock) -> None:
    with app.group("empty", then=report.call("none")):
        pass
    drain(app, clock)
    assert app.groups.get("empty").status() == progress()
    assert found("empty/then") is not None


@rule("B3")
def test_a_block_that_raises_leaves_the_group_open_and_says_how_to_seal_it(clock: ManualClock) -> None:
    with pytest.raises(ZeroDivisionError) as raised, app.group("import-17", then=report.call("17")) as group:  # noqa: PT012
        group.enqueue(load.call(1))
        _ = 1 / 0
    assert "app.groups.get('import-17').seal()" in raised.value.__notes__[0]
    drain(app, clock)
    assert group.status() == progress(total=1, succeeded=1, is_sealed=False, is_over=False)
    assert found("import-17/then") is None
    app.groups.get("import-17").enqueue(load.call(2))
    app.groups.get("import-17").seal()
    drain(app, clock)
    assert found("import-17/then") is not None


async def test_an_async_block_that_raises_leaves_the_group_open() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        async with app.group("import-17"):
            _ = 1 / 0
    assert "leasemill groups cancel import-17" in raised.value.__notes__[0]
    assert not app.groups.get("import-17").status().is_sealed


def test_a_seal_that_fails_says_that_the_group_is_open() -> None:
    with pytest.raises(Unavailable) as raised, app.group("import-17"):
        app.store.close()
    assert "is not sealed" in raised.value.__notes__[0]


def test_an_id_is_drawn_if_none_is_given() -> None:
    first, second = app.group().create(), app.group().create()
    assert first.id != second.id
    assert app.groups.get(first.id).status() == progress(is_sealed=False, is_over=False)


def test_a_group_is_created_by_its_first_use_and_once() -> None:
    group = app.group("import-17")
    with pytest.raises(NotFound, match="there is no group 'import-17'"):
        app.groups.get("import-17")
    group.enqueue(load.call(1))
    assert app.group("import-17").create().seal() == progress(total=1, unfinished=1, is_over=False)


def test_the_whole_block_again_with_the_same_ids_changes_nothing(clock: ManualClock) -> None:
    def produce() -> list[bool]:
        with app.group("import-17", then=report.call("17")) as group:
            handles = group.enqueue_many(load.options(job_id=f"row-{row}").call(row) for row in range(3))
        return [handle.is_duplicate for handle in handles]

    assert produce() == [False] * 3
    assert produce() == [True] * 3
    drain(app, clock)
    assert produce() == [True] * 3
    assert app.groups.get("import-17").status() == progress(total=3, succeeded=3)


def test_another_group_with_the_same_id_is_refused() -> None:
    app.group("import-17", then=report.call("17")).create()
    with pytest.raises(GroupRefused, match="exists with other content"):
        app.group("import-17", then=report.call("18")).create()


@rule("B1")
def test_a_sealed_group_takes_no_more_members() -> None:
    with app.group("import-17") as group:
        group.enqueue(load.call(1))
    with pytest.raises(GroupRefused, match="is sealed"):
        group.enqueue(load.call(2))
    assert group.status().total == 1


def test_a_member_keeps_its_options_and_rules() -> None:
    call = load.options(priority=3, lane="mine", job_id="member").call(1)
    call.spec = replace(call.spec, headers={"trace": "t"}, rules=Rules(limits=(LimitUse("api"),)))
    app.group("import-17").enqueue(call)
    job = found("member")
    assert job is not None
    assert (job.spec.priority, job.spec.lane, job.spec.headers) == (3, "mine", {"trace": "t"})
    assert job.spec.rules == Rules(limits=(LimitUse("api"),), group="import-17")


def test_a_call_is_a_member_of_one_group() -> None:
    call = load.call(1)
    app.group("first").enqueue(call)
    app.group("first").enqueue(call)
    with pytest.raises(Invalid, match="is a member of group 'first'"):
        app.group("second").enqueue(call)
    assert app.groups.get("first").status().total == 1


# Chains, groups in groups -----------------------------------------------------------------------------------------


@rule("B6")
def test_every_job_of_a_chain_is_a_member(clock: ManualClock) -> None:
    with app.group("import-17", then=report.call("17")) as group:
        handle = group.enqueue(chain(load.call(4), double.call(PREVIOUS)))
    assert group.status().total == 1
    drain(app, clock)
    assert handle.result() == 8
    assert group.status() == progress(total=2, succeeded=2)
    assert found("import-17/then") is not None


@rule("B7")
def test_a_group_in_a_group(clock: ManualClock) -> None:
    with app.group("all", then=notify.call("all")) as all_of_them:
        for name in ("a", "b"):
            with app.group(name, then=report.call(name), parent=all_of_them) as group:
                group.enqueue_many(load.call(row) for row in range(3))
    assert all_of_them.status() == progress(total=2, unfinished=2, is_over=False)
    drain(app, clock)
    assert all_of_them.status() == progress(total=4, succeeded=4), "two groups and the callback of each"
    assert found("all/then") is not None


# In a handler -------------------------------------------------------------------------------------------------


@rule("B5")
@pytest.mark.parametrize(("kind", "total"), [(splits, 4), (splits_in_a_thread, 7)])
def test_a_member_adds_members_with_its_commit_to_a_sealed_group(kind: Any, total: int, clock: ManualClock) -> None:
    with app.group("import-17", then=report.call("17")) as group:
        group.enqueue(kind.call(3))
    drain(app, clock)
    assert [(one.is_sealed, one.is_over, one.total >= 4) for one in seen] == [(True, False, True)]
    assert group.status() == progress(total=total, succeeded=total)
    then = found("import-17/then")
    assert then is not None
    assert then.created_at >= max(job.updated_at for job in app.store.jobs(c.JobFilter(group="import-17")).jobs)


def test_a_member_adds_members_only_with_its_commit(clock: ManualClock) -> None:
    with app.group("import-17") as group:
        handle = group.enqueue(splits_without_a_commit.call())
    drain(app, clock)
    assert "ctx.group.enqueue(...) inside the block" in (handle.record().executions[-1].error or "")
    assert group.status() == progress(total=1, failed=1)


def test_a_handler_can_ask_for_its_group(clock: ManualClock) -> None:
    member = app.group("import-17").enqueue(asks_for_its_group.call())
    alone = asks_for_its_group.enqueue()
    drain(app, clock)
    assert member.result() == "import-17"
    assert "is not a member of a group: look at ctx.group_id" in (alone.record().executions[-1].error or "")


# Waiting and cancelling ---------------------------------------------------------------------------------------


def test_a_waiter_is_woken_by_the_end_of_the_group(clock: ManualClock) -> None:
    with app.group("import-17") as group:
        group.enqueue_many(load.call(row) for row in range(20))
    results: list[GroupProgress] = []
    waiter = threading.Thread(target=lambda: results.append(group.wait(timeout=60)))
    waiter.start()
    drain(app, clock)
    waiter.join(60)
    assert results == [progress(total=20, succeeded=20)]


def test_a_wait_that_takes_too_long_says_what_is_missing() -> None:
    group = app.group("import-17").create()
    with pytest.raises(TimeoutError, match="it is not sealed, 0 of 0 members are unfinished"):
        group.wait(timeout=0.01)
    group.enqueue(load.call(1))
    group.seal()
    with pytest.raises(TimeoutError, match="group 'import-17' has not ended in time; it is sealed, 1 of 1 members"):
        group.wait(timeout=0.01)


@rule("B3")
def test_a_cancelled_group_ends_without_then(clock: ManualClock) -> None:
    group = app.group("import-17", then=report.call("17"), on_end=notify.call("17"))
    group.enqueue_many(load.call(row) for row in range(2_500))
    assert group.cancel("wrong file", by="ann") == 2_500
    assert group.status() == progress(total=2_500, cancelled=2_500)
    drain(app, clock)
    assert (found("import-17/then"), found("import-17/end") is not None) == (None, True)
    job = app.store.jobs(c.JobFilter(group="import-17"), limit=1).jobs[0]
    assert job.cancellation is not None
    assert (job.cancellation.by, job.cancellation.reason) == ("ann", "wrong file")


async def test_a_group_is_cancelled_in_async_code() -> None:
    group = app.group("import-17")
    await group.aenqueue(load.call(1))
    assert await group.acancel("wrong file") == 1


# Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: app.group("", then=report.call("17")).create(), "group '' must be 1 to 200"),
        (lambda: app.group("g", then=double.call(PREVIOUS)), "there is no job before this one"),
        (lambda: app.group("g", then=report.options(job_id="x").call("1")), "cannot have its own job_id"),
        (lambda: app.group("g", on_end=report.options(run_at=datetime.now(UTC)).call("1")), "cannot have run_at"),
        (lambda: app.group("g", then=report.call("1").in_group("g")), "cannot be a member of group 'g'"),
        (lambda: app.group("g", then=chain(load.call(1), load.call(2))), "cannot begin a chain"),
        (lambda: app.group("g", parent="g").create(), "cannot be a member of itself"),
    ],
)
def test_what_could_not_be_carried_out_is_refused(make: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        make()
    assert app.store.groups() == []
