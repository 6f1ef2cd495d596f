"""The tests that the project had before: nothing here knows of jobs."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

from django.test import AsyncClient, LiveServerTestCase, TestCase, TransactionTestCase

from tests.contrib.django.newcomer.books.models import Book


class Ordering:
    client: Any

    def test_an_order_makes_a_book(self) -> None:
        made = self.client.get("/order/Emma").json()["book"]
        assert Book.objects.get().pk == made

    def test_a_book_can_be_advertised(self) -> None:
        assert self.client.get("/advertise/Emma").status_code == 200

    def test_a_view_may_wait(self) -> None:
        assert self.client.get("/wait/Emma").status_code == 202

    def test_no_book_of_another_test_is_there(self) -> None:
        assert Book.objects.count() == 0


class InTransaction(Ordering, TestCase):
    def test_functions_for_after_the_commit_can_be_run(self) -> None:
        with self.captureOnCommitCallbacks(execute=True) as called:
            self.client.get("/advertise/Emma")
        assert len(called) == 1

    async def test_an_async_view_makes_a_book(self) -> None:
        made = (await self.async_client.get("/order-async/Emma")).json()
        assert (await Book.objects.aget()).pk == made["book"]
        assert made["job"] == "ready"


class OtherInTransaction(Ordering, TestCase):
    """For another process of `--parallel`."""


class WithoutTransaction(Ordering, TransactionTestCase):
    async def test_an_async_view_makes_a_book(self) -> None:
        client = AsyncClient()
        made = (await client.get("/order-async/Emma")).json()["book"]
        assert (await Book.objects.aget()).pk == made


class Served(LiveServerTestCase):
    def test_an_order_makes_a_book(self) -> None:
        with urlopen(f"{self.live_server_url}/order/Emma") as answer:
            assert answer.status == 200
        assert Book.objects.count() == 1
