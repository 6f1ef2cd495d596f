"""Where workers say that they are there: one small record each. Soft state, never in the log, safe to lose."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, unquote

WORKERS: Final = "workers"
RECORD: Final = ".worker"


class Presence(Protocol):
    """A place for workers' records. Called from threads, never from an event loop."""

    def publish(self, worker_id: str, record: bytes) -> None:
        """Replace this worker's record."""

    def records(self) -> list[tuple[str, bytes]]:
        """Every record, by worker id; whole ones only."""

    def remove(self, worker_id: str) -> bool:
        """Forget a worker; False if it was not there (any more)."""


class MemoryPresence:
    """Records of the workers of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, bytes] = {}

    def publish(self, worker_id: str, record: bytes) -> None:
        with self._lock:
            self._records[worker_id] = record

    def records(self) -> list[tuple[str, bytes]]:
        with self._lock:
            return sorted(self._records.items())

    def remove(self, worker_id: str) -> bool:
        with self._lock:
            return self._records.pop(worker_id, None) is not None


class FolderPresence:
    """A file for each worker, in a folder of its own; written beside and renamed, never synced."""

    def __init__(self, path: Path) -> None:
        self._path = path / WORKERS

    def publish(self, worker_id: str, record: bytes) -> None:
        path = self._file(worker_id)
        beside = path.with_name(f"{path.name}-{os.getpid()}")
        try:
            beside.write_bytes(record)
        except FileNotFoundError:
            self._path.mkdir(mode=0o700, exist_ok=True)
            beside.write_bytes(record)
        beside.replace(path)

    def records(self) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        try:
            paths = sorted(path for path in self._path.iterdir() if path.suffix == RECORD)
        except FileNotFoundError:
            return []
        for path in paths:
            try:
                found.append((unquote(path.name.removesuffix(RECORD)), path.read_bytes()))
            except FileNotFoundError:
                continue  # removed meanwhile
        return found

    def remove(self, worker_id: str) -> bool:
        try:
            self._file(worker_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def _file(self, worker_id: str) -> Path:
        return self._path / (quote(worker_id, safe="") + RECORD)
