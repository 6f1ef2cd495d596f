"""Stores: the kernel's events made durable, or the same contract on something else. See `store.base`."""
