"""Where a figure is measured: in a process of its own, on a store of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmarks.disk import folder
from leasemill.testing.postgres import PostgresServer

SPAWN = multiprocessing.get_context("spawn")
SETTINGS: Final = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
"""The same for all, the rest is as PostgreSQL comes; no checkpoint falls into the run of one system only."""


def child(function: Callable[..., Any], *arguments: object) -> Any:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_answer, args=(function, arguments, theirs))
    process.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__} failed in its process") from None
    process.join()
    return answer


def _answer(function: Callable[..., Any], arguments: tuple[object, ...], pipe: Connection) -> None:
    logging.disable(logging.WARNING)
    pipe.send(function(*arguments))
    pipe.close()
    os._exit(0)


@contextmanager
def server() -> Iterator[str]:
    """The URL of a PostgreSQL server that syncs, with room for large drains; another one, if it is given."""
    given = os.environ.get("LEASEMILL_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with PostgresServer(settings=SETTINGS) as made:
        yield made.url(tcp=True)


@contextmanager
def new_url(store: str) -> Iterator[Callable[[], str]]:
    """Makes URLs of empty stores."""
    number = 0
    if store == "file":
        with folder() as path:

            def next_folder() -> str:
                nonlocal number
                number += 1
                return f"file:{Path(path).resolve()}/jobs-{number}"

            yield next_folder
        return
    with PostgresServer() as server:

        def next_schema() -> str:
            nonlocal number
            number += 1
            return f"{server.url()}&schema=bench_{number}&auto_migrate=1"

        yield next_schema
