"""What is asked of a server besides the commands of the kernel: to wait, and to keep the records of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from leasemill.kernel.command import Command
from leasemill.kernel.model import WorkerOrder

LONGEST_WAIT_S: Final = 60.0
"""The longest a call is kept waiting: proxies close what is silent for longer."""


class Watched(Struct, frozen=True):
    """`has_changed`: what was waited for may have happened. `seen` is sent with the next wait, so that nothing between
    two waits is missed."""

    has_changed: bool
    seen: str = ""


class PresenceRecord(Struct, frozen=True):
    """A worker's record, and how long ago it was published, by the store's clock."""

    worker_id: str
    record: bytes
    age_s: float


class WatchQueues(Command[Watched], frozen=True):
    """Wait until a job of these queues is due."""

    queues: Sequence[str]
    wait_s: float = 0.0


class WatchEnd(Command[Watched], frozen=True):
    """Wait until the job has ended, or is gone; `seen`: of the wait before this one, "" for the first."""

    job_id: str
    wait_s: float = 0.0
    seen: str = ""


class WatchCancellations(Command[Watched], frozen=True):
    """Wait until a job was cancelled while a worker held it; `seen`: of the wait before this one, "" for the first."""

    wait_s: float = 0.0
    seen: str = ""


class PublishPresence(Command[WorkerOrder | None], frozen=True):
    """Replace a worker's record, any JSON; `leasemill workers` shows those that are as its own. Returns the latest
    order to the `instance` that the record names."""

    worker_id: str
    record: bytes


class RemovePresence(Command[bool], frozen=True):
    """Forget a worker; false: it was not there. `instance`: leave the record of any other."""

    worker_id: str
    instance: str | None = None


class ListPresence(Command[list[PresenceRecord]], frozen=True):
    """Every worker's record."""
