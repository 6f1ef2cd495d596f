"""Stores: the kernel's events made durable, or the same contract on something else. See `store.base`."""

from leasemill.store.base import Store, Watch, open_store

__all__ = ["Store", "Watch", "open_store"]
