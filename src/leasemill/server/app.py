"""The server as an ASGI application: a request in, the store's answer out.

A request is admitted by its head, read, decoded, authorized and performed, answered. What is not a command (health,
the reference, metrics, whatever is mounted) goes to `pages`. Nothing here blocks the event loop, and no rule of the
contract is here.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.command import Command
from leasemill.server.authorizer import Admission, Authorizer, RequestHead
from leasemill.server.exchange import Exchange, exchange_of
from leasemill.server.metrics import ServerMetrics
from leasemill.server.polls import Polls
from leasemill.server.presence import ServedPresence
from leasemill.server.reaper import ExpiredLeases, ServerReaper
from leasemill.server.request_body import Caller, CallerGone, Message, Receive
from leasemill.server.server_ids import KEY_HEADER, fill_in
from leasemill.store.base import Store
from leasemill.store.threads import Threads
from leasemill.wire import requests as r
from leasemill.wire.codec import DECODE_ERRORS, decode_request, encode_answer
from leasemill.wire.expired import EXPIRED, LISTENS
from leasemill.wire.problems import PROBLEM_TYPE, Denied, problem, problem_of, refusal_of
from leasemill.wire.routes import BY_PATH, Route

log = logging.getLogger("leasemill.server")

Scope: TypeAlias = Any
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

REQUEST_ID: Final = "x-request-id"
ADMISSION: Final = "leasemill.admission"
"""The name under which pages find the request's admission in the scope."""
THREADS: Final = 8
FIELD: Final = re.compile(r"^Object (?:contains unknown|missing required) field `(.+)`$")
JSON: Final = (b"content-type", b"application/json")
NOT_STORED: Final = (b"cache-control", b"no-store")


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)


class ServerApp:
    """A store behind HTTP. `pages` answers requests that are not commands."""

    def __init__(
        self,
        store: Store,
        pages: Asgi,
        *,
        authorizer: Authorizer | None = None,
        longest_wait_s: float = r.LONGEST_WAIT_S,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self._on_stop = on_stop
        self._pages = pages
        self._authorizer = authorizer or Authorizer()
        self._threads = Threads(THREADS, "leasemill-server")
        self._presence = ServedPresence(store, self._threads)
        self._expired = ExpiredLeases(store)
        self.reaper = ServerReaper(store, self._expired)
        self.polls = Polls(store, self._threads, longest_wait_s)
        self._metrics = ServerMetrics(lambda: self.polls.open)

    def stop(self) -> None:
        """Answer all callers that wait, and let no caller wait from now on."""
        self.polls.stop()
        self._on_stop()

    def close(self) -> None:
        self.polls.close()
        self._expired.close()
        self.reaper.close()
        self._threads.close()

    async def exposition(self) -> str:
        """Return the metrics of the server and of its reaper, in Prometheus's format."""
        return await self._metrics.exposition(self.store) + self.reaper.exposition()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        route = BY_PATH.get(scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = exchange_of(scope)
        began, caller, status = time.monotonic(), Caller(receive, exchange), 0
        try:
            head = RequestHead(scope["method"], scope["path"], headers, (scope.get("client") or ("",))[0], route)
            admission = await self._authorizer.admit(head)
            try:
                if route is None:
                    scope.setdefault("state", {})[ADMISSION] = admission
                    await self._pages(scope, receive, send)
                    return
                reply = await self._answered(route, head, admission, caller)
                status = reply.status
                await _send(send, exchange, reply, self._added_headers(headers))
            finally:
                self._authorizer.left(admission)
        except Denied as denied:
            status = denied.problem.status
            await _send(send, exchange, _denied(denied, headers), self._added_headers(headers))
        except CallerGone:
            status = 499  # as proxies log it; no client reads it
        finally:
            caller.close()
            if route is not None:
                self._metrics.answered(route.name, status, time.monotonic() - began)

    async def _answered(self, route: Route, head: RequestHead, admission: Admission, caller: Caller) -> Reply:
        if head.method != "POST":
            refused = problem(HTTPStatus.METHOD_NOT_ALLOWED, "method", f"{route.path} takes POST")
            raise Denied(refused, (("allow", "POST"),))
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            refused = problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_type", "send JSON, as application/json")
            raise Denied(refused, (("accept", "application/json"),))
        announced = head.headers.get("content-length")
        body = await caller.body(admission.body_bytes, announced, admission.body_s)
        try:
            command, wait_s = decode_request(route, body)
        except DECODE_ERRORS as error:
            raise _unreadable(error) from None
        if LISTENS in head.headers:
            self._expired.expect_listener()
        try:
            key = head.headers.get(KEY_HEADER)
            command = fill_in(command, self.store.entropy, admission.principal, key)
            answer = await self._authorizer.perform(
                admission, route, command, lambda one: self._run(one, wait_s, caller)
            )
        except LeasemillError as error:
            raise problem_of(error) from None
        return _reply(route, answer)

    def _added_headers(self, headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        added: list[tuple[bytes, bytes]] = []
        if REQUEST_ID in headers:
            added.append((REQUEST_ID.encode(), headers[REQUEST_ID].encode("latin-1")))
        if LISTENS in headers and (expired := self._expired.take()) is not None:
            added.append((EXPIRED.encode(), expired))
        return added

    async def _run(self, command: Command[Any], wait_s: float, caller: Caller) -> Any:
        match command:
            case c.Claim():
                return await self.polls.claim(command, wait_s, caller)
            case r.WatchQueues():
                return await self.polls.watch_queues(command, caller)
            case r.WatchEnd():
                return await self.polls.watch_end(command, caller)
            case r.WatchCancellations():
                return await self.polls.watch_cancellations(command, caller)
            case r.PublishPresence() | r.RemovePresence() | r.ListPresence() | c.OrderWorker():
                return await self._presence.run(command)
            case _:
                return await self.store.arun(command)


def _reply(route: Route, answer: Any) -> Reply:
    if answer is None and route.is_lookup:
        raise Denied(problem(HTTPStatus.NOT_FOUND, "not_found", "not found; it may have been removed"))
    body = encode_answer(route, answer)
    refused = refusal_of(answer)
    if refused is None:
        return Reply(200, body)
    status, reason = refused
    detail = "refused: `answer` says why, for each item"
    raise Denied(problem(status, reason, detail, answer=Raw(body)))


def _unreadable(error: Exception) -> Denied:
    if not isinstance(error, msgspec.ValidationError):
        detail = "the body is nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Denied(problem(HTTPStatus.BAD_REQUEST, "not_json", f"the body is not JSON: {detail}"))
    what, _, where = str(error).partition(" - at `")
    path = where.rstrip("`").removeprefix("$").removeprefix(".")
    named = FIELD.search(what)  # the object has one too many or too few
    if named is not None:
        path = f"{path}.{named[1]}" if path else named[1]
    return Denied(problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid", str(error), field=path or None, limit=what))


def _denied(denied: Denied, headers: Mapping[str, str]) -> Reply:
    request_id = headers.get(REQUEST_ID) or secrets.token_hex(8)
    shown = replace(denied.problem, request_id=request_id)
    if shown.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request %s: %s %s", request_id, shown.status, shown.detail)
    added = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in denied.headers)
    return Reply(shown.status, msgspec.json.encode(shown), ((b"content-type", PROBLEM_TYPE.encode()), *added))


async def _send(send: Send, exchange: Exchange | None, reply: Reply, added: list[tuple[bytes, bytes]]) -> None:
    headers = [*reply.headers, NOT_STORED, *added]
    if exchange is not None:
        exchange.reply(reply.status, headers, reply.body)
        return
    headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
