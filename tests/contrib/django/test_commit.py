"""`with ctx.commit() as tx` around what the ORM writes: one transaction, guarded by the lease."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError

from leasemill import Context, LeaseLost
from leasemill.api.lease_loss import LossSignal
from leasemill.contrib.django import app
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.testing.drain import drain
from tests.contrib.django.shop.jobs import counted, notify, ship
from tests.contrib.django.shop.models import Order

pytestmark = pytest.mark.usefixtures("empty_store")


@pytest.fixture
def order() -> Order:
    return Order.objects.create(article="book")


def held(order: Order) -> tuple[Context, c.Lease]:
    """A job in this test's hands, and the context its handler would get."""
    ship.enqueue(order.pk)
    (lease,) = app.store.claim("w", ["shipping"], 1)
    return Context(lease, ship, app.store, LossSignal(math.inf), time.monotonic() + 90), lease


def written(order: Order) -> int:
    order.refresh_from_db()
    return int(order.shipped)


def write(order: Order) -> None:
    Order.objects.filter(pk=order.pk).update(shipped=F("shipped") + 1)


def jobs() -> list[str]:
    return sorted(f"{one.spec.kind} {one.state.value}" for one in app.store.jobs().jobs)


def lose(lease: c.Lease) -> None:
    """Another worker has the job now."""
    app.store.release([c.ReleaseReport(lease.job.id, lease.token)])
    assert len(app.store.claim("another", ["shipping"], 1)) == 1


def test_a_worker_commits_what_the_orm_wrote_with_its_follow_ups(order: Order) -> None:
    handle = ship.enqueue(order.pk)
    drain(app)
    order.refresh_from_db()
    assert (order.state, order.shipped) == ("notified", 1)
    assert jobs() == ["notify succeeded", "ship succeeded"]
    (execution,) = handle.record().executions
    assert execution.committed_at is not None


@pytest.mark.parametrize("names_alias", [False, True])
def test_the_writes_the_marker_and_the_result_are_one_transaction(order: Order, names_alias: bool) -> None:
    ctx, lease = held(order)
    boundary: Any = ctx.commit("default") if names_alias else ctx.commit()
    with boundary as tx:
        write(order)
        tx.enqueue(notify, order.pk)
        assert jobs() == ["ship leased"]
    assert written(order) == 1
    job = app.store.job(lease.job.id)
    assert job is not None
    assert job.executions[0].committed_at is not None
    assert jobs() == ["notify ready", "ship leased"]


def test_an_error_in_the_block_rolls_all_of_it_back(order: Order) -> None:
    ctx, lease = held(order)

    def fails() -> None:
        with ctx.commit() as tx:
            write(order)
            tx.enqueue(notify, order.pk)
            Order.objects.create(article="book")

    with pytest.raises(IntegrityError):
        fails()
    assert written(order) == 0
    assert jobs() == ["ship leased"]
    with ctx.commit():
        write(order)
    assert written(order) == 1
    assert app.store.ack([c.AckReport(lease.job.id, lease.token)])


def test_an_error_that_was_swallowed_in_the_block_does_not_commit_the_rest(order: Order) -> None:
    ctx, _ = held(order)

    def swallows() -> None:
        with ctx.commit():
            write(order)
            with pytest.raises(IntegrityError):
                Order.objects.create(article="book")

    with pytest.raises(TransactionManagementError):
        swallows()
    assert written(order) == 0


def test_an_error_in_a_nested_block_undoes_that_alone(order: Order) -> None:
    ctx, _ = held(order)
    with ctx.commit():
        write(order)
        with pytest.raises(IntegrityError), transaction.atomic():
            Order.objects.create(article="book")
    assert written(order) == 1


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_zombie_writes_nothing(order: Order, when: str) -> None:
    ctx, lease = held(order)

    def late() -> None:
        if when == "before":
            lose(lease)
        with ctx.commit() as tx:
            write(order)
            tx.enqueue(notify, order.pk)
            lose(lease)

    with pytest.raises(LeaseLost):
        late()
    assert not connection.in_atomic_block
    assert written(order) == 0
    job = app.store.job(lease.job.id)
    assert job is not None
    assert [one.verb.value for one in job.refusals] == ["commit"]


def test_a_lease_that_is_lost_between_the_guard_and_commit_fails_the_commit(order: Order) -> None:
    """What Django still does before COMMIT (a deferred constraint, a slow server) is guarded too."""
    ctx, lease = held(order)

    def late() -> None:
        with ctx.commit():
            write(order)
            with connection.cursor() as cursor:
                cursor.execute("create temp table slow (id int)")
                cursor.execute(
                    "create function pg_temp.pause() returns trigger language plpgsql as "
                    "$$ begin perform pg_sleep(1); return null; end $$"
                )
                cursor.execute(
                    "create constraint trigger pause after insert on slow deferrable initially deferred "
                    "for each row execute function pg_temp.pause()"
                )
                cursor.execute("insert into slow values (1)")  # its trigger runs first: before the guard's
            threads.start()

    import threading  # noqa: PLC0415

    threads = threading.Timer(0.3, lambda: lose(lease))
    with pytest.raises(LeaseLost):
        late()
    threads.join()
    connection.close()  # with its temporary table
    assert written(order) == 0


def test_the_block_must_be_the_outermost(order: Order) -> None:
    ctx, _ = held(order)
    with (
        transaction.atomic(),
        pytest.raises(Invalid, match=r"let ctx\.commit\(\) be the outermost block"),
        ctx.commit(),
    ):
        raise AssertionError("the block ran")
    with ctx.commit():
        write(order)
    assert written(order) == 1


def test_a_connection_without_autocommit_is_refused(order: Order) -> None:
    ctx, _ = held(order)
    connection.set_autocommit(False)
    try:
        with pytest.raises(Invalid, match="is not in autocommit mode"), ctx.commit():
            raise AssertionError("the block ran")
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_a_rollback_that_was_asked_for_commits_nothing(order: Order) -> None:
    ctx, _ = held(order)

    def gives_up() -> None:
        with ctx.commit():
            write(order)
            transaction.set_rollback(True)

    with pytest.raises(TransactionManagementError):
        gives_up()
    assert written(order) == 0
    assert not ctx.is_committed


def test_what_is_to_run_on_commit_runs_and_its_errors_do_not_undo_the_commit(
    order: Order, caplog: pytest.LogCaptureFixture
) -> None:
    ctx, lease = held(order)
    seen: list[int] = []
    with ctx.commit(), caplog.at_level(logging.ERROR, "leasemill.job"):
        write(order)
        transaction.on_commit(lambda: seen.append(written(order)))
        transaction.on_commit(lambda: Order(article="book").save())
    assert seen == [1]
    assert any("IntegrityError" in str(one.exc_info) for one in caplog.records)
    job = app.store.job(lease.job.id)
    assert job is not None
    assert job.executions[0].committed_at is not None


def test_tx_execute_and_the_result_are_part_of_it(order: Order) -> None:
    handle = counted.enqueue(order.pk)
    drain(app)
    assert handle.result() == 1
    assert written(order) == 7


async def _in_thread(ctx: Context, order: Order) -> None:
    def block() -> None:
        with ctx.commit():
            write(order)

    await sync_to_async(block)()


def test_async_handlers_commit_in_the_thread_of_sync_to_async(order: Order) -> None:
    ctx, _ = held(order)

    async def handler() -> None:
        with pytest.raises(Invalid, match="transactions of Django are sync"):
            async with ctx.commit():
                raise AssertionError("the block ran")
        await _in_thread(ctx, order)
        await sync_to_async(connections.close_all)()

    asyncio.run(handler())
    assert written(order) == 1


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    connections.close_all()
