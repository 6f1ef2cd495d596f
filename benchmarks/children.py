"""Where a figure is measured: in a process of its own, on a store of its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.disk import folder
from leasemill.testing.postgres import PostgresServer

SPAWN = multiprocessing.get_context("spawn")


def child(function: Callable[..., Any], *arguments: object) -> Any:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_answer, args=(function, arguments, theirs))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


def _answer(function: Callable[..., Any], arguments: tuple[object, ...], pipe: Connection) -> None:
    logging.disable(logging.WARNING)
    pipe.send(function(*arguments))
    pipe.close()
    os._exit(0)


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
