"""Moves a process into the network namespace that LEASEMILL_TEST_NETNS names, before it does anything."""

import ctypes
import os
from pathlib import Path

CLONE_NEWNET = 0x40000000

with Path("/run/netns", os.environ["LEASEMILL_TEST_NETNS"]).open("rb") as namespace:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
