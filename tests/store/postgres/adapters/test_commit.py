"""`ctx.commit(x)` for sessions and connections of SQLAlchemy and asyncpg: the user's transaction is the commit's."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from leasemill import App, Context, JobState
from leasemill.errors import Invalid, JobConflict, LeaseLost, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ExecutionStatus, JobSpec
from leasemill.kernel.verbs.commit import followup_id
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.adapters.subjects import ASYNCPG, PSYCOPG, SUBJECTS, Subject
from tests.store.postgres.committing import SOON, Connection, cents, drained, held, nothing, refused
from tests.worker.support import until


def has_marker(app: App, lease: c.Lease) -> bool:
    job = app.store.job(lease.job.id)
    assert job is not None
    return job.executions[-1].committed_at is not None


async def is_usable(subject: Subject, bank: Connection) -> bool:
    """Whether its next transaction is one, on its own."""
    before = cents(bank)
    await subject.begin()
    await subject.deposit(1000)
    await subject.rollback()
    await subject.begin()
    await subject.deposit(1)
    await subject.commit()
    return cents(bank) == before + 1


# One transaction -------------------------------------------------------------------------------------------------


@rule("X6")
async def test_nothing_is_there_before_the_block_is_left_and_all_of_it_after(
    app: App, bank: Connection, subject: Subject
) -> None:
    context, lease = held(app)
    async with subject.block(context) as tx:
        await subject.deposit(7)
        followup = tx.enqueue(nothing(app))
        tx.set_result(49)
        assert cents(bank) == 0
        assert app.store.job(followup_id(lease.job.id, 0)) is None
    assert cents(bank) == 7
    assert app.store.job(followup_id(lease.job.id, 0)) is not None
    assert followup.id == followup_id(lease.job.id, 0)
    assert context.is_committed
    assert has_marker(app, lease)
    app.store.ack([c.AckReport(lease.job.id, lease.token)])
    assert app.handle(lease.job.id).result(0) == 49
    assert await is_usable(subject, bank)


@rule("X6")
async def test_an_error_in_the_block_rolls_everything_back(app: App, bank: Connection, subject: Subject) -> None:
    context, lease = held(app)
    with pytest.raises(ValueError, match="not after all"):
        async with subject.block(context) as tx:
            await subject.deposit(7)
            tx.enqueue(nothing(app))
            raise ValueError("not after all")
    assert cents(bank) == 0
    assert app.store.job(followup_id(lease.job.id, 0)) is None
    assert not has_marker(app, lease)
    assert not context.is_committed
    assert await is_usable(subject, bank)


async def test_a_refused_statement_is_the_drivers_error_and_nothing_remains(
    app: App, bank: Connection, subject: Subject
) -> None:
    context, lease = held(app)
    with pytest.raises(subject.errors, match="nothing_of_this_name"):
        async with subject.block(context):
            await subject.deposit(7)
            await subject.execute("select * from nothing_of_this_name")
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    assert await is_usable(subject, bank)


async def test_an_error_swallowed_in_the_block_does_not_commit(app: App, bank: Connection, subject: Subject) -> None:
    context, lease = held(app)
    with pytest.raises(subject.errors, match="current transaction is aborted"):
        async with subject.block(context):
            await subject.deposit(7)
            with pytest.raises(subject.errors):
                await subject.execute("select * from nothing_of_this_name")
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    assert await is_usable(subject, bank)


async def test_a_refusal_of_the_database_at_commit_is_the_handlers_error(
    app: App, bank: Connection, subject: Subject
) -> None:
    """A deferred constraint is checked by COMMIT itself."""
    bank.execute("alter table balance add constraint once unique (cents) deferrable initially deferred")
    context, lease = held(app)
    with pytest.raises(subject.errors, match="once"):
        async with subject.block(context):
            await subject.execute("insert into balance values ('bob', 0)")
    assert (context.is_committed, has_marker(app, lease)) == (False, False)
    async with subject.block(context):
        await subject.execute("insert into balance values ('bob', 1)")
    assert (context.is_committed, has_marker(app, lease)) == (True, True)


@rule("X6")
async def test_a_conflicting_followup_takes_the_writes_with_it(app: App, bank: Connection, subject: Subject) -> None:
    context, lease = held(app)
    app.store.enqueue([JobSpec(followup_id(lease.job.id, 0), "default", "other", b"{}")])
    with pytest.raises(JobConflict):
        async with subject.block(context) as tx:
            await subject.deposit(7)
            tx.enqueue(nothing(app))
    assert (cents(bank), has_marker(app, lease)) == (0, False)
    async with subject.block(context):
        await subject.deposit(7)
    assert (cents(bank), has_marker(app, lease)) == (7, True)


async def test_a_savepoint_that_is_rolled_back_takes_its_writes_alone(
    app: App, bank: Connection, subject: Subject
) -> None:
    context, lease = held(app)
    async with subject.block(context):
        await subject.deposit(7)
        with pytest.raises(ValueError, match="not this"):
            async with subject.savepoint():
                await subject.deposit(100)
                raise ValueError("not this")
        async with subject.savepoint():
            await subject.deposit(20)
    assert (cents(bank), has_marker(app, lease)) == (27, True)


async def test_jobs_enqueued_with_using_in_the_block_belong_to_it(app: App, bank: Connection, subject: Subject) -> None:
    context, _lease = held(app)
    with pytest.raises(ValueError, match="not after all"):
        async with subject.block(context):
            gone = await subject.enqueue(nothing(app))
            raise ValueError("not after all")
    assert app.store.job(gone.id) is None
    async with subject.block(context):
        made = await subject.enqueue(nothing(app))
        assert app.store.job(made.id) is None
    assert app.store.job(made.id) is not None


async def test_a_block_without_writes_commits_too(app: App, subject: Subject) -> None:
    context, lease = held(app)
    async with subject.block(context) as tx:
        tx.set_result(1)
    assert has_marker(app, lease)


@rule("X4")
async def test_one_commit_holds_everything(app: App, bank: Connection, subject: Subject) -> None:
    context, _lease = held(app)
    async with subject.block(context):
        await subject.deposit(7)
    with pytest.raises(Invalid, match="has committed in this run already"):
        async with subject.block(context):
            await subject.deposit(7)
    assert cents(bank) == 7
    assert await is_usable(subject, bank)


async def test_an_open_block_locks_nothing_of_the_stores(
    app: App, bank: Connection, schema: str, subject: Subject
) -> None:
    context, lease = held(app)
    async with subject.block(context):
        await subject.deposit(7)
        with bank.transaction():
            for table in ("leases", "jobs", "queues"):
                bank.execute(f"select * from {schema}.{table} for update nowait".encode())
        (extended,) = app.store.extend([c.LeaseRef(lease.job.id, lease.token)])
        assert isinstance(extended, c.Extended)
    assert cents(bank) == 7


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_worker_runs_handlers_that_commit_so(app: App, bank: Connection, postgres_url: str, name: str) -> None:
    """The first run of each job dies after its effect, or before it: the effect is there once."""

    @app.job(queue="receipts")
    async def receipt(cents: int) -> int:
        return cents

    @app.job(retry=SOON)
    async def deposit(ctx: Context, amount: int) -> int:
        async with SUBJECTS[name](postgres_url) as subject:
            if amount % 2 and ctx.attempt == 1:
                raise ConnectionError("before")
            async with subject.block(ctx) as tx:
                await subject.deposit(amount)
                tx.enqueue(receipt, amount)
                tx.set_result(amount)
            raise ConnectionError("after")

    handles = [deposit.enqueue(number) for number in range(1, 5)]
    await drained(app)
    assert cents(bank) == 10
    assert [handle.result(0) for handle in handles] == [1, 2, 3, 4]
    assert [app.handle(followup_id(handle.id, 0)).result(0) for handle in handles] == [1, 2, 3, 4]
    for handle in handles:
        assert handle.record().executions[-1].status is ExecutionStatus.DONE


# A lease that is lost --------------------------------------------------------------------------------------------


@rule("L2", "L4", "L5")
async def test_a_lease_lost_before_the_block_keeps_it_from_running(
    app: App, bank: Connection, subject: Subject
) -> None:
    context, lease = held(app)
    app.store.cancel([lease.job.id], by="me", reason="a test")
    with pytest.raises(LeaseLost):
        async with subject.block(context):
            await subject.deposit(7)
    assert (cents(bank), context.lost.is_set()) == (0, True)
    assert refused(app, lease) == [("commit", "cancelled")]
    assert await is_usable(subject, bank)


@rule("L2", "L4", "L5")
async def test_a_lease_lost_in_the_block_rolls_back_and_leaves_its_refusal(
    app: App, bank: Connection, subject: Subject
) -> None:
    context, lease = held(app)
    with pytest.raises(LeaseLost, match="commit of job"):
        async with subject.block(context) as tx:
            await subject.deposit(7)
            tx.enqueue(nothing(app))
            app.store.cancel([lease.job.id], by="me", reason="a test")
    assert cents(bank) == 0
    assert app.store.job(followup_id(lease.job.id, 0)) is None
    assert refused(app, lease) == [("commit", "cancelled")]
    assert await is_usable(subject, bank)


@rule("L3", "X4")
async def test_the_run_after_a_zombie_commits_and_the_zombie_does_not(
    app: App, bank: Connection, postgres_url: str, subject: Subject
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        zombie, lease = held(app, store)
        with pytest.raises(LeaseLost) as caught:
            async with subject.block(zombie):
                await subject.deposit(7)
                clock.advance(s=31)
                (second,) = store.claim("w2", ["default"], 1)
                assert second.job.id == lease.job.id
                store.commit(second.job.id, second.token)
        assert caught.value.current_attempt == 2
        assert cents(bank) == 0
        assert refused(app, lease) == [("commit", "superseded")]
    assert await is_usable(subject, bank)


@rule("L3")
async def test_a_zombie_of_a_lease_that_nobody_took_is_refused_as_well(
    app: App, bank: Connection, postgres_url: str, subject: Subject
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store, app.bound_to(store):
        zombie, _ = held(app, store)
        with pytest.raises(LeaseLost):
            async with subject.block(zombie):
                await subject.deposit(7)
                clock.advance(s=31)
        assert cents(bank) == 0


async def test_a_lease_lost_while_commit_waits_is_refused_by_the_guard(
    app: App, bank: Connection, schema: str, postgres_url: str, subject: Subject
) -> None:
    """The lease is there when the block ends, and its row is held by who is ending it: COMMIT waits, and is refused."""
    context, lease = held(app)
    with PostgresStore(postgres_url) as other:
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
            bank.execute(f"update {schema}.leases set expires_at = 0".encode())
        with pytest.raises(LeaseLost):
            await committing
        assert cents(bank) == 0
        assert other.job(lease.job.id) is not None
    assert await is_usable(subject, bank)


async def waits_for_a_lock(bank: Connection) -> None:
    await until(lambda: bank.execute("select from pg_locks where not granted").fetchone() is not None)


# A transaction that is ended by hand -----------------------------------------------------------------------------


async def test_a_transaction_ended_in_the_block_is_not_marked_as_committed(
    app: App, bank: Connection, subject: Subject
) -> None:
    context, lease = held(app)
    # psycopg refuses it by itself.
    with pytest.raises((Refused, psycopg.ProgrammingError), match=r"was ended inside its block|rollback\(\) forbidden"):
        async with subject.block(context):
            await subject.deposit(7)
            if name_of(subject).startswith("asyncpg"):
                await subject.execute("rollback")
            else:
                await subject.rollback()
            await subject.deposit(100)
    assert not has_marker(app, lease)
    assert app.handle(lease.job.id).status() is JobState.LEASED


@pytest.mark.parametrize("name", [*ASYNCPG, *PSYCOPG])
async def test_another_transaction_than_the_blocks_is_refused(
    app: App, bank: Connection, postgres_url: str, name: str
) -> None:
    """Ended in SQL, which a driver does not notice, and begun again."""
    context, lease = held(app)
    async with SUBJECTS[name](postgres_url) as subject:
        with pytest.raises(Refused, match="was ended inside its block"):
            async with subject.block(context):
                await subject.deposit(7)
                await subject.execute("rollback")
                if not name.startswith("psycopg "):  # which begins by itself
                    await subject.execute("begin")
                await subject.deposit(100)
        assert await is_usable(subject, bank)
    assert (cents(bank), has_marker(app, lease)) == (1, False)


def name_of(subject: Subject) -> str:
    return type(subject.carried).__module__
