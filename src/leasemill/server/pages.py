"""The pages of a server besides commands: health, its reference, its metrics, and what is mounted beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.server.app import ServerApp
from leasemill.server.authorizer import Authorizer
from leasemill.server.exchange import FAILED
from leasemill.server.key_authorizer import REFERENCE
from leasemill.server.openapi import written
from leasemill.store.base import Store
from leasemill.wire.problems import PROBLEM_TYPE, Problem, problem
from leasemill.wire.requests import LONGEST_WAIT_S
from leasemill.worker.prometheus.samples import CONTENT_TYPE

READY_S: Final = 2.0


def server_app(
    store: Store,
    *,
    authorizer: Authorizer | None = None,
    mounts: Mapping[str, Any] | None = None,
    longest_wait_s: float = LONGEST_WAIT_S,
    on_stop: Callable[[], None] = lambda: None,
) -> ServerApp:
    """The whole server over a store. `mounts`: ASGI applications by path, such as a dashboard; `on_stop`: called when
    the server begins to stop, to end what they have open. The store stays the caller's."""
    written()  # made before a client waits for it
    pages = Pages(store)
    routes: list[BaseRoute] = [
        Route("/healthz", pages.health),
        Route("/readyz", pages.readiness),
        Route("/metrics", pages.metrics),
        Route(REFERENCE, pages.reference),
        *(Mount(path, mounted) for path, mounted in (mounts or {}).items()),
    ]
    starlette = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _shown, Exception: _failed},
        lifespan=_lifespan(lambda: app.close()),  # noqa: PLW0108  (it is made below)
    )
    app = ServerApp(store, starlette, authorizer=authorizer, longest_wait_s=longest_wait_s, on_stop=on_stop)
    pages.is_stopping = lambda: app.polls.is_stopping
    pages.exposition = app.exposition
    return app


class Pages:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_stopping: Callable[[], bool] = lambda: False
        self.exposition: Callable[[], Awaitable[str]]

    async def health(self, _request: Request) -> Response:
        """The process answers."""
        return _json({"status": "ok"})

    async def readiness(self, _request: Request) -> Response:
        """The store answers, and the server is not about to stop."""
        if self.is_stopping():
            return _problem(problem(HTTPStatus.SERVICE_UNAVAILABLE, "stopping", "the server is stopping"))
        try:
            async with asyncio.timeout(READY_S):
                await self._store.arun(c.GetTime())
        except TimeoutError:
            silent = f"the store did not answer within {READY_S:g} s"
            return _problem(problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", silent))
        except LeasemillError as error:
            return _problem(problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error)))
        return _json({"status": "ok"})

    async def metrics(self, _request: Request) -> Response:
        try:
            page = await self.exposition()
        except LeasemillError as error:
            return _problem(problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", str(error)))
        return Response(page, headers={"content-type": CONTENT_TYPE})

    async def reference(self, _request: Request) -> Response:
        return Response(written(), media_type="application/json")


def _lifespan(close: Callable[[], None]) -> Callable[[Starlette], Any]:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        close()

    return lifespan


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def _problem(shown: Problem, headers: Mapping[str, str] | None = None) -> Response:
    retry = {"retry-after": "1"} if shown.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Response(
        msgspec.json.encode(shown), shown.status, {**(headers or {}), **retry, "content-type": PROBLEM_TYPE}
    )


async def _failed(_request: Request, _error: Exception) -> Response:
    """Answer without showing the error, which is raised again and logged."""
    return _problem(FAILED)


async def _shown(_request: Request, error: Exception) -> Response:
    """Starlette's own refusals: no such page, no such method."""
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    headers = error.headers if isinstance(error, HTTPException) else None
    reason = "no_such_page" if status is HTTPStatus.NOT_FOUND else status.name.lower()
    return _problem(problem(status, reason, "commands are POST /v1/…; /openapi.json lists them"), headers)
