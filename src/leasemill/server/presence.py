"""The records of workers that are elsewhere, kept where the store keeps those of its own.

Commands to workers are here because they are checked against those records."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import msgspec

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.bounds import check_json, check_text
from leasemill.kernel.machine import check
from leasemill.store.base import Store
from leasemill.store.threads import Threads
from leasemill.store.worker_records import check_instance
from leasemill.wire import requests as r

PresenceCommand: TypeAlias = r.PublishPresence | r.RemovePresence | r.ListPresence | c.OrderWorker


class ServedPresence:
    """A store's presence blocks, so it is asked in threads."""

    def __init__(self, store: Store, threads: Threads) -> None:
        self._store = store
        self._threads = threads

    async def run(self, command: PresenceCommand) -> Any:
        if isinstance(command, r.PublishPresence):
            check_text("worker_id", command.worker_id)
            check_json("record", command.record)
        try:
            return await asyncio.wrap_future(self._threads.submit(self._run, command))
        except OSError as error:
            raise Unavailable(f"the records of workers cannot be reached: {error}") from error

    def _run(self, command: PresenceCommand) -> Any:
        presence = self._store.presence
        match command:
            case r.PublishPresence():
                return presence.publish(command.worker_id, command.record)
            case r.RemovePresence():
                return presence.remove(command.worker_id, command.instance)
            case c.OrderWorker():
                check(command)
                check_instance(presence, command.worker, command.instance)
                return self._store.run(command)
            case r.ListPresence():
                return [r.PresenceRecord(*one) for one in presence.records() if _is_json(one.content)]


def _is_json(content: bytes) -> bool:
    """Return True if the record is JSON: a worker of another version may have written anything."""
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
