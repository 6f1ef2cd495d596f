"""Which workers are running, as the server's store knows it. Soft state, safe to lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasemill.kernel.bounds import check_json, check_text
from leasemill.kernel.model import WorkerOrder
from leasemill.store.presence import Present
from leasemill.wire import requests as r


class HttpPresence:
    """Called from threads, never from an event loop."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        self._run = run

    def publish(self, worker_id: str, record: bytes) -> WorkerOrder | None:
        check_text("worker id", worker_id)
        check_json("record", record)
        order: WorkerOrder | None = self._run(r.PublishPresence(worker_id, record))
        return order

    def records(self) -> list[Present]:
        return [Present(one.worker_id, one.record, one.age_s) for one in self._run(r.ListPresence())]

    def remove(self, worker_id: str, instance: str | None = None) -> bool:
        removed: bool = self._run(r.RemovePresence(worker_id, instance))
        return removed
