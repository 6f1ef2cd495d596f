from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse

from tests.contrib.django.newcomer.books.jobs import announce, print_book
from tests.contrib.django.newcomer.books.models import Book


def order(request: HttpRequest, title: str) -> JsonResponse:
    with transaction.atomic():
        book = Book.objects.create(title=title)
        print_book.enqueue(book.pk)
    return JsonResponse({"book": book.pk})


def advertise(request: HttpRequest, title: str) -> JsonResponse:
    """Enqueues outside a transaction of its own, and later."""
    announce.enqueue(title)
    transaction.on_commit(lambda: announce.enqueue(f"{title}, again"))
    return JsonResponse({})


async def order_async(request: HttpRequest, title: str) -> JsonResponse:
    book = await Book.objects.acreate(title=title)
    job = await print_book.aenqueue(book.pk)
    return JsonResponse({"book": book.pk, "job": (await job.astatus()).value})


def wait(request: HttpRequest, title: str) -> JsonResponse:
    """Waits for a job that no worker runs."""
    try:
        announce.enqueue(title).result(timeout=0.01)
    except TimeoutError:
        return JsonResponse({}, status=202)
    return JsonResponse({})
