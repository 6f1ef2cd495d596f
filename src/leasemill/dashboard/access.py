"""Who looks: principals and their roles, and how someone signs in with a link that works once.

What must never happen here: a token or a session id kept in clear, compared in variable time, or valid for ever.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest
from typing import Final, TypeAlias

from msgspec import Struct
from starlette.requests import Request

SESSION_S: Final = 12 * 3600.0
SESSIONS_KEPT: Final = 100
FAILURES_ALLOWED: Final = 10
FAILURES_WITHIN_S: Final = 60.0


class ViewerRole(StrEnum):
    """The right to look, or to act as well."""

    READ = "read"
    OPERATE = "operate"


class Principal(Struct, frozen=True):
    """The person who is looking. The name is recorded with every action."""

    name: str
    role: ViewerRole = ViewerRole.READ

    @property
    def may_act(self) -> bool:
        return self.role is ViewerRole.OPERATE


Authorize: TypeAlias = Callable[[Request], Principal | Awaitable[Principal | None] | None]
"""Returns who sends a request, or None for somebody who may not look."""


class SignIn:
    """Links that work once, and the sessions they open. Lives in one process; safe to call from any thread."""

    def __init__(
        self,
        principal: Principal,
        *,
        on_new_link: Callable[[str], object] = lambda _token: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._principal = principal
        self._on_new_link = on_new_link
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token_digest = b""
        self._sessions: OrderedDict[bytes, float] = OrderedDict()
        self._failures: deque[float] = deque(maxlen=FAILURES_ALLOWED)

    def new_token(self) -> str:
        """Return the token that opens the next session. The one before it is void."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._token_digest = _digest(token)
        return token

    def is_throttled(self) -> bool:
        """Return whether there were too many wrong tokens within a minute."""
        with self._lock:
            is_full = len(self._failures) == FAILURES_ALLOWED
            return is_full and self._monotonic() - self._failures[0] < FAILURES_WITHIN_S

    def open(self, token: str) -> str | None:
        """Open a session for the token, which is void from now on; None if it is not the token."""
        given = _digest(token)
        with self._lock:
            if not self._token_digest or not compare_digest(given, self._token_digest):
                self._failures.append(self._monotonic())
                return None
            self._token_digest = b""
            session = secrets.token_urlsafe(32)
            self._sessions[_digest(session)] = self._monotonic() + SESSION_S
            while len(self._sessions) > SESSIONS_KEPT:
                self._sessions.popitem(last=False)
        self._on_new_link(self.new_token())
        return session

    def principal(self, session: str | None) -> Principal | None:
        if not session:
            return None
        with self._lock:
            until = self._sessions.get(_digest(session))
        return self._principal if until is not None and self._monotonic() < until else None

    def close(self, session: str | None) -> None:
        if session:
            with self._lock:
                self._sessions.pop(_digest(session), None)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
