"""Something is closed while another caller is just starting one of its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from unittest import mock

LIMIT_S = 60.0
A_MOMENT_S = 0.2


def close_while_starting(name: str, call: Callable[[], Any], close: Callable[[], None]) -> None:
    """`call` starts a thread of this name, and `close` is called before it runs. Raises what either of them raises."""
    is_starting, goes_on = threading.Event(), threading.Event()
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        if thread.name == name:
            is_starting.set()
            assert goes_on.wait(LIMIT_S)
        start(thread)

    with mock.patch.object(threading.Thread, "start", start_slowly), ThreadPoolExecutor(2) as callers:
        calling = callers.submit(call)
        assert is_starting.wait(LIMIT_S)
        closing = callers.submit(close)
        wait([closing], A_MOMENT_S)  # one that joins too early has failed by then
        goes_on.set()
        closing.result(LIMIT_S)
        calling.result(LIMIT_S)
