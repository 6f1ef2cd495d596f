"""Server-sent events: a number that changes when a page is worth fetching again. No data of the store is sent here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse

from leasemill.dashboard.sampler import Sample, Sampler

LOOK_S: Final = 0.5
OPEN_S: Final = 10.0
"""A server that stops waits for open responses, and one that we are mounted in does not say that it stops. So a stream
ends by itself, and the page opens the next one."""
STILL_S: Final = 5.0
"""Without a change in the counts a page is fetched again after this long: what it shows may have aged."""


class Streams:
    """The streams that are open; `end` lets a server stop that would wait for them."""

    def __init__(self) -> None:
        self._are_over = False

    def end(self) -> None:
        self._are_over = True

    def open(self, sampler: Sampler) -> StreamingResponse:
        return StreamingResponse(
            self._events(sampler),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _events(self, sampler: Sampler) -> AsyncIterator[str]:
        """Yield events until the client leaves: the server cancels this then."""
        loop = asyncio.get_running_loop()
        yield "retry: 3000\n\n"
        sent, trouble, sent_at = sampler.latest, sampler.trouble, loop.time()
        until = loop.time() + OPEN_S
        while not self._are_over:
            if loop.time() >= until:
                yield "event: again\ndata: \n\n"
                return
            sampler.watched()
            await asyncio.sleep(LOOK_S)
            latest, has_changed = sampler.latest, sampler.trouble != trouble
            if has_changed or _differs(sent, latest) or loop.time() - sent_at >= STILL_S:
                sent, trouble, sent_at = latest, sampler.trouble, loop.time()
                number = 0 if latest is None else latest.number
                yield f"event: change\ndata: {number}\n\n"


def _differs(before: Sample | None, after: Sample | None) -> bool:
    if before is None or after is None:
        return before is not after
    return before.totals != after.totals
