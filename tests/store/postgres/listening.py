"""What tests of waking wait for: that the store listens, and that the job has run."""

from __future__ import annotations

from typing import Any

from leasemill import JobHandle, JobState
from leasemill.store.base import Store
from leasemill.store.postgres.store import PostgresStore


def is_listening(store: Store) -> bool:
    assert isinstance(store, PostgresStore)
    return store._listener.is_listening.is_set()


def has_succeeded(handle: JobHandle[Any]) -> bool:
    """Asks the store and waits for nothing."""
    return handle.status() is JobState.SUCCEEDED
