"""Waiting for a signal in an event loop."""

from __future__ import annotations

import asyncio

import pytest

from leasemill.store.signal import Signal


@pytest.mark.parametrize("steps", range(5))
async def test_a_waiter_that_is_cancelled_as_the_signal_comes_is_cancelled(steps: int) -> None:
    """It would wait again, for as long as it likes, if the signal hid that it is to end."""
    signal = Signal()
    waiting = asyncio.create_task(signal.watch().wait_async(60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    signal.notify()
    for _ in range(steps):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert waiting.result() is True
