"""`ctx.commit(x)` when the user's connection is lost: the store is asked what became of it, nothing is guessed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count

import pytest
from psycopg.conninfo import conninfo_to_dict

from leasemill import App, Context, JobState
from leasemill.errors import LeaseLost
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.postgres.driver.url import parse_url
from tests.fire.proxy import Cut, Proxy
from tests.store.postgres.adapters.subjects import SUBJECTS, Subject
from tests.store.postgres.adapters.test_commit import has_marker, waits_for_a_lock
from tests.store.postgres.committing import SOON, Connection, cents, drained, held, nothing
from tests.worker.support import until


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(int(str(conninfo_to_dict(parse_url(postgres_url)[0])["port"]))) as proxy:
        yield proxy


@pytest.fixture
def proxied_url(proxy: Proxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PGSSLMODE", "disable")  # of libpq and of asyncpg; the proxy has to read what passes
    given = conninfo_to_dict(parse_url(postgres_url)[0])
    return f"postgresql://{given['user']}@127.0.0.1:{proxy.port}/{given['dbname']}"


async def has_ended(bank: Connection, pid: int) -> None:
    await until(lambda: bank.execute("select from pg_stat_activity where pid = %s", [pid]).fetchone() is None)


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("name", SUBJECTS)
async def test_wherever_the_connection_is_cut_effect_and_marker_are_one(
    app: App, bank: Connection, proxy: Proxy, proxied_url: str, name: str, cut: Cut
) -> None:
    """At every request between the block's last statement and the answer to COMMIT."""
    outcomes: list[bool] = []
    for number in count(1):
        context, lease = held(app)
        before, is_raised, pid = cents(bank), False, 0
        async with SUBJECTS[name](proxied_url) as subject:
            try:
                async with subject.block(context) as tx:
                    await subject.deposit(7)
                    tx.enqueue(nothing(app))
                    pid = await subject.pid()
                    proxy.arm(cut, number)
            except subject.losses:
                is_raised = True
            is_cut = not proxy.disarm()
        assert pid, "the block was not entered"
        await has_ended(bank, pid)
        is_done = cents(bank) == before + 7
        assert has_marker(app, lease) == is_done
        assert (app.store.job(followup_id(lease.job.id, 0)) is not None) == is_done
        assert is_done or is_raised
        assert context.is_committed is not is_raised
        if cut is not Cut.DURING:  # there the server may be at it while the store is asked: the lease's end settles it
            assert is_done is not is_raised
        if not is_cut:
            assert is_done
            break
        outcomes.append(is_done)
    assert len(outcomes) >= 2, "the guard and COMMIT are requests of their own"
    assert not any(outcomes[:-1])
    assert outcomes[-1] or cut is not Cut.AFTER


async def test_a_backend_that_is_terminated_at_commit_is_asked_about(
    app: App, bank: Connection, schema: str, subject: Subject
) -> None:
    context, lease = held(app)
    entered, left = asyncio.Event(), asyncio.Event()

    async def commit() -> None:
        async with subject.block(context):
            await subject.deposit(7)
            entered.set()
            await left.wait()

    committing = asyncio.create_task(commit())
    await entered.wait()
    with bank.transaction():
        bank.execute(f"select * from {schema}.leases for update".encode())
        left.set()
        await waits_for_a_lock(bank)
        bank.execute("select pg_terminate_backend(pid, 5000) from pg_locks where not granted")
    with pytest.raises(subject.losses):
        await committing
    assert (cents(bank), has_marker(app, lease), context.is_committed) == (0, False, False)


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_connection_lost_in_the_block_fails_the_run_and_the_next_one_applies_it_once(
    app: App, bank: Connection, postgres_url: str, name: str
) -> None:
    @app.job(retry=SOON)
    async def deposit(ctx: Context) -> None:
        async with SUBJECTS[name](postgres_url) as subject, subject.block(ctx):
            await subject.deposit(1)
            if ctx.attempt == 1:
                bank.execute("select pg_terminate_backend(%s, 5000)", [await subject.pid()])
            await subject.deposit(1)

    handle = deposit.enqueue()
    await drained(app)
    assert (handle.status(), handle.record().retries, cents(bank)) == (JobState.SUCCEEDED, 1, 2)


@pytest.mark.parametrize("name", [name for name in SUBJECTS if name.lower().startswith("async")])
async def test_a_handler_cancelled_in_its_block_leaves_nothing(
    app: App, bank: Connection, postgres_url: str, name: str
) -> None:
    @app.job(timeout=0.3, retry=0)
    async def endless(ctx: Context) -> None:
        async with SUBJECTS[name](postgres_url) as subject, subject.block(ctx):
            await subject.deposit(1)
            await subject.execute("select pg_sleep(60)")

    handle = endless.enqueue()
    await asyncio.wait_for(drained(app), 50)
    assert handle.status() is JobState.FAILED
    assert cents(bank) == 0


@pytest.mark.parametrize("name", [name for name in SUBJECTS if name.lower().startswith("async")])
async def test_a_handler_cancelled_at_commit_leaves_effect_and_marker_as_one(
    app: App, bank: Connection, schema: str, postgres_url: str, name: str
) -> None:
    context, lease = held(app)
    entered, left = asyncio.Event(), asyncio.Event()

    async def commit() -> None:
        async with SUBJECTS[name](postgres_url) as subject, subject.block(context):
            await subject.deposit(7)
            entered.set()
            await left.wait()

    committing = asyncio.create_task(commit())
    await entered.wait()
    with bank.transaction():
        bank.execute(f"select * from {schema}.leases for update".encode())
        left.set()
        await waits_for_a_lock(bank)
        committing.cancel()
        await asyncio.wait([committing], timeout=5)
    with pytest.raises(asyncio.CancelledError):
        await committing
    await until(lambda: bank.execute("select from pg_locks where not granted").fetchone() is None)
    assert has_marker(app, lease) == (cents(bank) == 7)


async def test_a_cancellation_that_races_with_the_commit_wins_or_loses_as_a_whole(
    app: App, bank: Connection, subject: Subject
) -> None:
    """Over and over, from another thread: the job is cancelled and nothing was written, or it has committed."""
    expected = 0
    for number in range(8):
        context, lease = held(app)
        cancelling: asyncio.Task[object] | None = None
        try:
            async with subject.block(context):
                await subject.deposit(1)
                cancelling = asyncio.create_task(asyncio.to_thread(cancelled, app, lease.job.id, number))
        except LeaseLost:
            assert not has_marker(app, lease)
        else:
            expected += 1
            assert context.is_committed
        assert cancelling is not None
        await cancelling
        assert cents(bank) == expected


def cancelled(app: App, job_id: str, number: int) -> None:
    time.sleep(number * 0.0005)
    app.store.cancel([job_id], by="me", reason="a test")
