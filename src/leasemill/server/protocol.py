"""HTTP/1.1 as uvicorn speaks it with httptools, with limits that neither has.

uvicorn closes connections that are idle between requests, and nothing else: one that sends its head a byte a minute,
goes on sending a body after its request was refused, or never reads its answer, stays for ever. Here each of these
has a deadline, and there are at most so many connections. When there are too many, the oldest that has not sent a whole
head yet is closed, or else the one that has been idle longest: however many of them somebody opens, there is room for
the next client. Of requests that are sent before the answer to the last was read, none is begun until it was, and those
of all connections take turns.

The parser gets one request at a time: what follows it waits outside, so an error in the next one cannot be taken for
the answer to this one. What must never happen here: that two programs in a row could see different requests in the same
bytes. Whatever httptools accepts and others might read differently is refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from typing import Any, Final
from urllib.parse import unquote

import httptools
from msgspec.structs import replace
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leasemill.server.exchange import EXTENSION, Exchange
from leasemill.server.refusals import FULL, HEAD_BYTES, HEADERS, LARGE_HEAD, MALFORMED, written

HEAD_S: Final = 10.0
LINGER_S: Final = 2.0
"""After an early refusal what is still sent is thrown away for so long, so that the refusal can be read."""
STUCK_S: Final = 30.0
CONNECTIONS: Final = 4_000
SILENT: Final = 500
"""Connections without a whole head, at most."""
BLANK_LINE: Final = b"\r\n\r\n"


class Connected:
    """The connections of one server."""

    def __init__(self, most: int = CONNECTIONS, most_silent: int = SILENT) -> None:
        self.most = most
        self.most_silent = most_silent
        self.silent: OrderedDict[GuardedProtocol, None] = OrderedDict()
        """Those that have not sent a whole head, the oldest first."""
        self.idle: OrderedDict[GuardedProtocol, float] = OrderedDict()
        """Those between two requests, and since when; the one first that has been so longest."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._line: deque[GuardedProtocol] = deque()
        """Those that have sent their next request already."""

    def line_up(self, protocol: GuardedProtocol) -> None:
        """However many requests are sent ahead, on however many connections, one of them is begun in each turn of the
        event loop: a client that waits for an answer before its next request does not wait for all of those."""
        self._line.append(protocol)
        if len(self._line) == 1:
            protocol.loop.call_soon(self._begin_next)

    def _begin_next(self) -> None:
        first = self._line.popleft()
        if self._line:
            first.loop.call_soon(self._begin_next)
        first.go_on()

    def rest(self, protocol: GuardedProtocol) -> None:
        """Nothing is left to do until the next request. One timer serves all: to set and cancel one for each request
        would take longer than much of what is done for it."""
        self.idle[protocol] = protocol.loop.time()
        if self._idle_timer is None:
            self._idle_timer = protocol.loop.call_later(protocol.timeout_keep_alive, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        while self.idle:
            oldest, since = next(iter(self.idle.items()))
            left_s = since + oldest.timeout_keep_alive - oldest.loop.time()
            if left_s > 0:
                self._idle_timer = oldest.loop.call_later(left_s, self._close_idle)
                return
            del self.idle[oldest]
            oldest.close()

    def make_room(self) -> bool:
        """Close a connection on which no client waits for an answer; False: there is none."""
        for waiting in (self.silent, self.idle):
            if waiting:
                oldest, _ = waiting.popitem(last=False)
                oldest.transport.abort()
                return True
        return False


def guarded(connected: Connected) -> type[HttpToolsProtocol]:
    """The protocol of one server, as `uvicorn.Config(http=…)` takes it."""
    return type("ServedProtocol", (GuardedProtocol,), {"connected": connected})


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    connected = Connected()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._stuck_timer: asyncio.TimerHandle | None = None
        self._received = b""
        """What the parser has not been given yet."""
        self._tail = b""
        """The last bytes that it was given of a head: a blank line may begin in them."""
        self._overhead = 0
        """Bytes that it was given since the last content."""
        self._is_in_body = False
        self._body_left: int | None = None
        """None: its length is not known before its end."""
        self._is_whole = False
        """The request ended with what the parser was given last."""
        self._is_held = False
        """An answer is complete, and the next request may not begin yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.connected.most and not self.connected.make_room():
            transport.write(FULL)
            self.close()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        self.connected.idle.pop(self, None)
        for timer in (self._linger_timer, self._stuck_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # Reading -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._read()

    def _read(self) -> None:
        """Up to the end of a request."""
        data, at = self._received, 0
        while at < len(data) and not self.transport.is_closing():
            if self._is_held or (self._is_in_request and not self._is_in_body):
                self.flow.pause_reading()
                break
            self.connected.idle.pop(self, None)
            end = self._piece_end(data, at)
            self._feed(data[at:end])
            at = end
        self._received = data[at:]
        if self._is_in_request:
            self._has_head()
        elif self._has_no_deadline:
            self._await_head()
        if self._linger_timer is not None and not self._is_in_body:
            self._linger_timer.cancel()
            self._linger_timer = None

    def _piece_end(self, data: bytes, at: int) -> int:
        """Where the parser must stop, so that it gets nothing of the next request: a head ends with a blank line, a
        body where its length says. Chunks end where the parser finds it."""
        if self._is_in_body:
            if not self._body_left:
                return len(data)
            end = min(at + self._body_left, len(data))
            self._body_left -= end - at
            return end
        before, self._tail = self._tail, b""
        found = (before + data[at : at + 3]).find(BLANK_LINE)  # it may come in two parts
        if found >= 0:
            return at + found + len(BLANK_LINE) - len(before)
        found = data.find(BLANK_LINE, at)
        if found >= 0:
            return found + len(BLANK_LINE)
        self._tail = (before + data[at:])[-3:]
        return len(data)

    def _feed(self, piece: bytes) -> None:
        self._overhead += len(piece)
        self._is_whole = False
        try:
            if self._is_in_body or self._overhead <= HEAD_BYTES:
                self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError:
            if self._is_whole:
                self._read_no_more()
            else:
                self._refuse()
        else:
            if self._overhead > HEAD_BYTES:
                self._refuse()

    def _read_no_more(self) -> None:
        """Something was sent ahead after chunks, which the parser cannot give back."""
        if self._is_in_request:
            self.cycle.keep_alive = False  # the answer says so
        else:
            self.close()

    def _refuse(self) -> None:
        if self._is_in_body and self.cycle.response_started:
            self.transport.abort()  # there is nothing more to say
            return
        is_large = not self._is_in_body and (self._overhead > HEAD_BYTES or len(self.headers or ()) > HEADERS)
        shown = replace(LARGE_HEAD if is_large else MALFORMED, request_id=secrets.token_hex(8))
        self.logger.warning("request %s: %s %s", shown.request_id, shown.status, shown.detail)
        self.transport.write(written(shown, *self.server_state.default_headers))
        self.close()

    def _ignore_upgrade(self) -> None:
        """As a server may. httptools takes what follows such a head for another protocol, not for its body. A head that
        wants one without the header, a CONNECT, is refused: fed again, it would want it again, without end."""
        if all(name != b"upgrade" for name, _ in self.headers):
            self._refuse()
            return
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._overhead = 0
        self._feed(b"\r\n".join(lines) + BLANK_LINE)

    # What the parser reports -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ValueError
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_body:
            return  # a trailer is not part of the head that was admitted
        name, value = name.lower(), value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        length = self._checked_head()
        if self.parser.should_upgrade():
            return
        self._begin()
        self._overhead = 0
        self._is_in_body = True
        self._body_left = length

    def _begin(self) -> None:
        """The application gets the request; a connection has one at a time."""
        version, url, scope = self.parser.get_http_version(), httptools.parse_url(self.url), self.scope
        path = url.path.decode("ascii")
        self.cycle = exchange = Exchange(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and self.parser.should_keep_alive(),
            self.on_response_complete,
        )
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        scope["extensions"] = {EXTENSION: exchange}  # type: ignore[dict-item]
        self._start_asgi_task(exchange, self.app)

    def _checked_head(self) -> int | None:
        """How long its body is. What is raised here the parser reports as an error of the request."""
        version, fields = self.parser.get_http_version(), dict(self.headers)
        names = [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if version not in {"1.0", "1.1"} or hosts > 1 or (hosts == 0 and version == "1.1"):
            raise ValueError
        if not self.url.startswith(b"/") or len(names) > HEADERS:
            raise ValueError
        encoding = fields.get(b"transfer-encoding")
        if encoding is None:
            return int(fields.get(b"content-length", 0))
        if encoding.lower() != b"chunked" or names.count(b"transfer-encoding") > 1 or version == "1.0":
            raise ValueError
        return None

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_in_body:  # else it wants an upgrade
            self._overhead = 0
            self._is_in_body = False
            self._is_whole = True
            super().on_message_complete()

    # Answering -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer is on its way. The next request begins when this one was taken, and when it is its turn."""
        if self.transport.is_closing() or not (self.flow.write_paused or self._received):
            self.go_on()
            return
        self._is_held = True
        self.flow.pause_reading()
        if not self.flow.write_paused:
            self.connected.line_up(self)

    def go_on(self) -> None:
        """With the next request, or with waiting for it."""
        self._is_held = False
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self.close()
            return
        self.flow.resume_reading()
        if self._is_in_body and self._linger_timer is None:
            self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)
        self.connected.rest(self)
        self._read()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck_timer = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
        if self.transport.is_closing():
            self.close()
        elif self._is_held:
            self.connected.line_up(self)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.close()

    def close(self) -> None:
        """When what is unsent was taken. A transport that closes waits for that, however long it takes."""
        self.transport.close()
        if self._stuck_timer is None:
            self._stuck_timer = self.loop.call_later(STUCK_S, self.transport.abort)

    @property
    def _is_in_request(self) -> bool:
        """From the end of a head to the end of its answer."""
        cycle: Exchange | None = self.cycle  # type: ignore[assignment]
        return cycle is not None and not cycle.response_complete

    @property
    def _has_no_deadline(self) -> bool:
        """Between two requests, and neither idle nor waited for: the end of a refused body was the last that came."""
        is_waiting = not (self._is_held or self._is_in_body or self.transport.is_closing())
        return is_waiting and self not in self.connected.idle and self._head_timer is None

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)
        self.connected.silent[self] = None
        if len(self.connected.silent) > self.connected.most_silent:
            self.connected.make_room()

    def _has_head(self) -> None:
        self.connected.silent.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
