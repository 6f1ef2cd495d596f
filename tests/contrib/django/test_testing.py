"""Jobs in Django's TestCase and TransactionTestCase."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from leasemill.contrib.django import app
from leasemill.contrib.django.task_backend.names import TaskResultStatus
from leasemill.contrib.django.testing import JobsMixin, jobs_of_test
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.testing.binding import Binder
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.jobs import fails_late, notify, notify_async, ship
from tests.contrib.django.shop.models import Order


class Cases(JobsMixin):
    def order(self, **changes: Any) -> Order:
        return Order.objects.create(article="book", **changes)

    def state(self, order: Order) -> str:
        order.refresh_from_db()
        return str(order.state)

    def test_run_runs_jobs_and_their_follow_ups_on_the_test_s_connection(self) -> None:
        order = self.order()
        with transaction.atomic():
            handle = ship.enqueue(order.pk)
        assert self.state(order) == "new"
        counted = self.jobs.run()
        assert self.state(order) == "notified"
        assert counted.succeeded == 2
        assert handle.status() == "succeeded"

    def test_what_was_rolled_back_does_not_run(self) -> None:
        order = self.order()
        with transaction.atomic():
            notify.enqueue(order.pk)
            transaction.set_rollback(True)
        assert self.jobs.enqueued() == []
        self.jobs.run()
        assert self.state(order) == "new"

    def test_async_handlers_use_the_test_s_connection_too(self) -> None:
        order = self.order()
        notify_async.enqueue(order.pk)
        assert self.jobs.enqueued("notify_async") == [{"order_id": order.pk}]
        self.jobs.run()
        assert self.state(order) == "notified"

    def test_an_error_in_the_commit_undoes_the_writes_and_the_job_fails(self) -> None:
        order = self.order()
        handle = fails_late.enqueue(order.pk)
        self.jobs.run()
        assert handle.status() == "failed"
        assert self.state(order) == "new"

    def test_tasks_have_their_results(self) -> None:
        result = tasks.answer.enqueue()
        result.refresh()
        assert result.status == TaskResultStatus.READY
        self.jobs.run()
        result.refresh()
        assert result.return_value == 42

    def test_unique_jobs_are_free_again_when_they_ran(self) -> None:
        first = tasks.bill.enqueue("ann")
        assert tasks.bill.enqueue("ann").id == first.id
        self.jobs.run()
        assert tasks.bill.enqueue("ann").id != first.id

    async def test_async_tests_run_jobs_too(self) -> None:
        order = await Order.objects.acreate(article="book")
        await notify.aenqueue(order.pk)
        with pytest.raises(Invalid, match=r"write `await jobs.arun\(\)`"):
            self.jobs.run()
        assert (await self.jobs.arun()).succeeded == 1
        await order.arefresh_from_db()
        assert order.state == "notified"

    def test_nothing_of_a_test_is_left_to_the_next(self) -> None:
        assert self.jobs.enqueued() == []
        assert Order.objects.count() == 0


class InTransaction(Cases, TestCase):
    def test_the_jobs_are_in_the_transaction_of_the_test(self) -> None:
        with self.assertNumQueries(1):
            notify.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from leasemill.jobs")
            assert cursor.fetchone() == (1,)


class WithoutTransaction(Cases, TransactionTestCase):
    available_apps = ["tests.contrib.django.shop", "leasemill.contrib.django"]  # noqa: RUF012


@override_settings(LEASEMILL={"URL": "memory:"})
class StoreElsewhere(JobsMixin, TestCase):
    def test_the_jobs_of_a_store_elsewhere_run_as_well(self) -> None:
        order = Order.objects.create(article="book")
        notify.enqueue(order.pk)
        self.jobs.run()
        order.refresh_from_db()
        assert order.state == "notified"
        assert app.store.name == "memory:"


class WithoutDatabase(SimpleTestCase):
    def test_an_enqueue_is_refused_like_a_query(self) -> None:
        app.close()
        connections.close_all()
        with self.assertRaisesMessage(AssertionError, "not allowed in SimpleTestCase"):
            notify.enqueue(1)
        assert app.store.run(c.ListJobs(c.JobFilter(), 1)).jobs == ()


def test_the_fixture_for_other_apps_refuses_and_names_the_one_for_django(leasemill: Binder) -> None:
    with pytest.raises(Invalid, match="use the fixture `leasemill_django`, or JobsMixin in a TestCase"):
        leasemill(app)
    with pytest.raises(Invalid, match="use the fixture `leasemill_django`"), leasemill.all_bound([app]):
        pass


def test_jobs_that_another_test_committed_are_not_those_of_the_next() -> None:
    notify.enqueue(1)
    with jobs_of_test() as jobs:
        assert jobs.enqueued() == []
    app.close()


def test_the_mixin_without_a_test_case_names_the_fixture() -> None:
    with pytest.raises(Invalid, match="use the fixture `leasemill_django` instead"):
        JobsMixin().jobs  # noqa: B018  (asked for)


def test_the_fixture_says_that_it_needs_pytest_django(request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.fail.Exception, match="pip install pytest-django"):
        request.getfixturevalue("leasemill_django")
