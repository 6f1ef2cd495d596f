"""A server in a thread of the test, on a real socket. One serves many tests, each with a store of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from leasemill.server.address import bound_socket
from leasemill.server.app import ServerApp
from leasemill.server.authorizer import Authorizer
from leasemill.server.pages import server_app
from leasemill.server.protocol import Connected, guarded
from leasemill.server.uvicorn_server import StoppingServer, new_server
from leasemill.store.base import Store
from leasemill.wire.requests import LONGEST_WAIT_S

LIMIT_S = 30.0
GUARDED: Final = {"http": guarded(Connected())}


class Stage:
    """The application that plays now."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        await self.app(scope, receive, send)

    def stop(self) -> None:
        if self.app is not None:
            self.app.stop()


async def _lifespan(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


class ServerThread:
    """Listens from the start; `serving` puts a store behind it."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._stage = Stage()
        self._socket = bound_socket("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        options = GUARDED if options is None else options
        self.server: StoppingServer = new_server(self._stage, stop_s=2, options=options)  # type: ignore[arg-type]
        self.loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)
        self._thread.start()
        assert self._started.wait(LIMIT_S)

    def _run(self) -> None:
        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            self._started.set()
            await self.server.serve(sockets=[self._socket])

        asyncio.run(serve())

    @contextmanager
    def serving(
        self, store: Store, authorizer: Authorizer | None = None, longest_wait_s: float = LONGEST_WAIT_S
    ) -> Iterator[ServerApp]:
        app = server_app(store, authorizer=authorizer, longest_wait_s=longest_wait_s)
        self._stage.app = app
        try:
            yield app
        finally:
            self.call(app.close)

    def call(self, function: Any) -> Any:
        """In the server's event loop."""

        async def called() -> Any:
            return function()

        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(LIMIT_S)

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(LIMIT_S)
