"""`job.enqueue()` in `transaction.atomic()`: jobs that come and go with Django's transaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from leasemill import App, JobConflict
from leasemill.contrib.django import app
from leasemill.errors import Invalid, NotFound, Refused
from tests.contrib.django.shop.jobs import notify
from tests.contrib.django.shop.models import Order

pytestmark = pytest.mark.usefixtures("empty_store")


class Undo(Exception):
    pass


@pytest.fixture(autouse=True)
def known_queue() -> None:
    """Its use is on record: the first job of a queue writes that down, on a connection of the store's own."""
    app.store.cancel([notify.enqueue(0).id], by="test", reason="only to use the queue")


def claimable() -> int:
    """What a worker would see: on a connection of the store's own."""
    return len(app.store.claim("w", ["shipping"], 100))


def test_a_job_exists_when_its_transaction_has_committed_and_not_before() -> None:
    with transaction.atomic():
        order = Order.objects.create(article="book")
        handle = notify.enqueue(order.pk)
        assert claimable() == 0
        assert handle.status() == "ready"  # to this transaction
        with ThreadPoolExecutor() as others, pytest.raises(NotFound, match="its transaction has not committed yet"):
            others.submit(handle.status).result()
    assert handle.status() == "ready"
    assert claimable() == 1


def test_a_rollback_leaves_no_job() -> None:
    def fails() -> None:
        with transaction.atomic():
            notify.enqueue(Order.objects.create(article="book").pk)
            raise Undo

    with pytest.raises(Undo):
        fails()
    assert (claimable(), Order.objects.count()) == (0, 0)


def test_a_nested_block_that_is_rolled_back_takes_its_jobs_along() -> None:
    def fails() -> None:
        with transaction.atomic():
            notify.enqueue(2)
            raise Undo

    with transaction.atomic():
        kept = notify.enqueue(1)
        with pytest.raises(Undo):
            fails()
        also = notify.enqueue(3)
    assert {lease.job.id for lease in app.store.claim("w", ["shipping"], 9)} == {kept.id, also.id}


def test_an_enqueue_is_one_statement_and_the_query_log_has_it() -> None:
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        notify.enqueue(1)
    statements = [one["sql"] for one in queries.captured_queries]
    assert [text for text in statements if not text.startswith(("BEGIN", "COMMIT"))] == [
        text for text in statements if 'insert into "leasemill".jobs' in text
    ]
    assert sum('insert into "leasemill".jobs' in text for text in statements) == 1


def test_many_are_one_statement() -> None:
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        app.enqueue_many(notify.call(number) for number in range(500))
    assert sum("insert into" in one["sql"] for one in queries.captured_queries) == 1
    assert claimable() == 100


def test_without_a_transaction_a_job_is_durable_at_once() -> None:
    with CaptureQueriesContext(connection) as queries:
        notify.enqueue(1)
    assert len(queries) == 0, "it went through Django's connection"
    assert claimable() == 1


def test_an_error_of_the_database_keeps_the_block_from_committing() -> None:
    """As the ORM's own errors do: who swallows it gets no half of a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            "create function pg_temp.fails() returns trigger language plpgsql as $$ begin raise 'full'; end $$"
        )
        cursor.execute(
            "create trigger fails before insert on leasemill.jobs for each row execute function pg_temp.fails()"
        )
    try:
        with transaction.atomic():
            Order.objects.create(article="book")
            with pytest.raises(DatabaseError, match="full"):
                notify.enqueue(1)
            with pytest.raises(TransactionManagementError):
                Order.objects.count()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("drop trigger fails on leasemill.jobs")
    assert Order.objects.count() == 0


def test_after_an_error_of_django_s_the_block_takes_no_job() -> None:
    Order.objects.create(article="book")
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            Order.objects.create(article="book")
        with pytest.raises(TransactionManagementError):
            notify.enqueue(1)
    assert claimable() == 0


def test_a_conflict_leaves_the_transaction_as_it_was() -> None:
    with transaction.atomic():
        notify.options(job_id="one").enqueue(1)
        assert notify.options(job_id="one").enqueue(1).is_duplicate
        with pytest.raises(JobConflict):
            notify.options(job_id="one").enqueue(2)
        Order.objects.create(article="book")
    assert (claimable(), Order.objects.count()) == (1, 1)


def test_using_names_the_alias_whose_transaction_it_joins() -> None:
    with transaction.atomic(using="default"):
        notify.using("default").enqueue(1)
        notify.using(connection).enqueue(2)
        notify.using(connections["default"]).enqueue(3)
        assert claimable() == 0
    assert claimable() == 3
    with pytest.raises(Invalid, match="there is no database 'sales': DATABASES has 'default', 'other', 'lite'"):
        notify.using("sales").enqueue(1)
    with pytest.raises(Invalid, match="the alias 'lite' is a database of sqlite"):
        notify.using("lite").enqueue(1)


def test_a_database_without_the_tables_is_refused() -> None:
    with transaction.atomic(using="other"), pytest.raises(Refused, match="has no Leasemill tables in the schema"):
        notify.using("other").enqueue(1)


def test_a_transaction_of_another_database_does_not_hold_a_job_back() -> None:
    with transaction.atomic(using="other"):
        notify.enqueue(1)
        assert claimable() == 1


def test_an_app_of_one_s_own_takes_django_s_connection() -> None:
    mine = App(app.url)

    @mine.job(queue="shipping")
    def own() -> None: ...

    with mine, transaction.atomic():
        own.using(connection).enqueue()
        assert claimable() == 0
    assert claimable() == 1


def test_aenqueue_joins_the_transaction_of_the_sync_code_around_it() -> None:
    async def inside() -> None:
        await notify.aenqueue(1)

    with transaction.atomic():
        async_to_sync(inside)()
        assert claimable() == 0
    assert claimable() == 1


async def test_aenqueue_in_async_code_is_durable_when_it_returns() -> None:
    await notify.aenqueue(1)
    assert await sync_to_async(claimable)() == 1
    await sync_to_async(connections.close_all)()


def test_without_autocommit_a_job_waits_for_the_commit() -> None:
    connection.set_autocommit(False)
    try:
        notify.enqueue(1)
        assert claimable() == 0
        connection.commit()
        assert claimable() == 1
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_a_group_takes_members_in_a_transaction_and_is_sealed_outside_of_it() -> None:
    with app.group() as group, transaction.atomic():
        group.enqueue(notify.call(1))
    assert group.status().total == 1
    with transaction.atomic(), pytest.raises(Invalid, match="cannot be sealed inside"), app.group():
        pass


def test_a_store_elsewhere_takes_a_job_at_once(tmp_path: Path) -> None:
    """What the check W001 warns of: transaction.on_commit is the way."""

    def fails() -> None:
        with transaction.atomic():
            notify.enqueue(1)
            transaction.on_commit(lambda: notify.enqueue(2))
            raise Undo

    app.close()
    with override_settings(LEASEMILL={"URL": f"file:{tmp_path}"}):
        with pytest.raises(Undo):
            fails()
        assert claimable() == 1
        app.close()
