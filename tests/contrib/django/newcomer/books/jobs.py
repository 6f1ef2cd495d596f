from __future__ import annotations

from leasemill.contrib.django import app
from tests.contrib.django.newcomer.books.models import Book


@app.job(queue="printing")
def print_book(book_id: int) -> None:
    Book.objects.filter(pk=book_id).update(state="printed")


@app.job(unique=True)
def announce(title: str) -> None:
    """Somebody would be told."""
