"""More of the project's own tests, written for pytest-django."""

from __future__ import annotations

from typing import Any
from urllib.request import urlopen

import pytest

from tests.contrib.django.newcomer.books.models import Book


@pytest.mark.django_db
def test_an_order_makes_a_book(client: Any) -> None:
    assert client.get("/order/Emma").status_code == 200
    assert Book.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_order_makes_a_book_without_a_transaction(client: Any) -> None:
    assert client.get("/order/Emma").status_code == 200
    assert client.get("/advertise/Emma").status_code == 200
    assert Book.objects.count() == 1


def test_a_served_order_makes_a_book(live_server: Any) -> None:
    with urlopen(f"{live_server.url}/order/Emma") as answer:
        assert answer.status == 200
