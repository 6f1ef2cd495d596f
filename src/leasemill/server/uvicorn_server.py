"""The uvicorn server that runs until a signal stops it.

After the first SIGTERM or SIGINT callers that wait are answered with nothing, and requests under way are finished;
after the second it ends at once. A client that gets such an answer asks again, and finds the next server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

import uvicorn

from leasemill.server.app import ServerApp

KEEP_ALIVE_S: Final = 75


class StoppingServer(uvicorn.Server):
    """Notifies the application when it is to stop, before it waits for requests to end."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)  # a signal may come in the middle of anything


def new_server(app: ServerApp, *, stop_s: float = 10.0, options: Mapping[str, Any] | None = None) -> StoppingServer:
    """`options`: of uvicorn, such as those of TLS."""
    level = max(logging.WARNING, logging.getLogger().level)  # when it starts and stops is said by the command
    logging.getLogger("uvicorn").setLevel(level)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(stop_s)),
        **(options or {}),
    )
    return StoppingServer(config, app.stop)
