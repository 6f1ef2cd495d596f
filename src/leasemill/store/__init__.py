"""Stores: ways to keep the kernel's events, or the same contract on something else. See `store.base`."""

from leasemill.store.base import Inspector, Operator, Store, Watch, open_store

__all__ = ["Inspector", "Operator", "Store", "Watch", "open_store"]
