"""The disk under a store, where the store is a folder."""

from __future__ import annotations

from msgspec import Struct


class DiskRoom(Struct, frozen=True):
    """The disk under a folder. `is_full`: new jobs are refused, until `needed_bytes` more are free. `reserve_bytes` are
    kept for running jobs and a snapshot; the reserve is whole, or some of it is in use."""

    is_full: bool
    free_bytes: int
    needed_bytes: int
    reserve_bytes: int
    is_reserve_whole: bool
