"""Django's connections in a worker: around each run as around each request.

Connections belong to threads. A handler's thread runs many jobs, so between them what has become unusable or older
than CONN_MAX_AGE is closed, and the log of queries that DEBUG keeps is emptied. Async handlers reach the ORM through
`sync_to_async`, whose thread it is then done in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager

from asgiref.sync import sync_to_async
from django.db import connections

from leasemill.api.context import Context
from leasemill.api.policy import is_on_event_loop


def connections_kept(_context: Context) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
    """The hook around every run of the app."""
    return _on_loop() if is_on_event_loop() else _in_thread()


@contextmanager
def _in_thread() -> Iterator[None]:
    tidy()
    try:
        yield
    finally:
        tidy()


@asynccontextmanager
async def _on_loop() -> AsyncIterator[None]:
    try:
        yield
    finally:
        await sync_to_async(tidy)()


def tidy() -> None:
    """Do what Django does between requests. A connection in a transaction, which is a test's, is left alone."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()
