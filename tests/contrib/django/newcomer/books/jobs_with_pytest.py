"""Tests that run the project's jobs, in pytest's own style: `test_existing_tests.py` runs them with pytest-django."""

from __future__ import annotations

from typing import Any

import pytest

from leasemill.contrib.django.testing import TestJobs
from tests.contrib.django.newcomer.books.models import Book


def test_a_job_runs_in_the_transaction_of_the_test(leasemill_django: TestJobs, client: Any) -> None:
    made = client.get("/order/Emma").json()["book"]
    assert leasemill_django.enqueued("print_book") == [{"book_id": made}]
    assert leasemill_django.run().succeeded == 1
    assert Book.objects.get().state == "printed"


@pytest.mark.django_db(transaction=True)
def test_a_job_runs_where_transactions_commit(leasemill_django: TestJobs, client: Any) -> None:
    client.get("/order/Emma")
    assert leasemill_django.run().succeeded == 1
    assert Book.objects.get().state == "printed"


class TestOrders:
    def test_nothing_of_another_test_is_left(self, leasemill_django: TestJobs) -> None:
        assert leasemill_django.enqueued() == []
        assert Book.objects.count() == 0
