"""The keys of the store, as a server has them in memory: looked at on every request, read again when they change.

A thread asks the store twice a second whether keys were added or revoked, and writes down which were used. A request
never waits for it. What must never happen here: a key that is taken although it was revoked more than a moment ago; if
the store does not answer for a while, no key is taken.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from leasemill.errors import LeasemillError, Unavailable
from leasemill.store.access_keys import AccessKey, AccessKeys, id_of, is_authentic
from leasemill.store.system import Clock, WallClock

log = logging.getLogger("leasemill.server")

LOOK_EVERY_S: Final = 0.5
STALE_S: Final = 15.0
"""After so long without an answer of the store, keys may have been revoked that are still known here."""
USE_EVERY_US: Final = 60_000_000
"""The last use of a key is written at most once a minute."""


class KeyRing:
    """The live keys of a store. `find` may be called from any thread, and waits for nothing."""

    def __init__(
        self,
        keys: AccessKeys,
        *,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._clock: Clock = clock or WallClock()
        self._monotonic = monotonic
        self._version: str | None = None
        self._by_id: dict[str, AccessKey] = {}
        self._used: dict[str, int] = {}
        """The uses that are not written yet, by the key's id."""
        self._written: dict[str, int] = {}
        self._read_at = -STALE_S
        self._is_failing = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], str] = {}
        """The futures that are done when a key ends, with the key's id."""
        self.refresh()

    @property
    def is_empty(self) -> bool:
        """True if there is no key that could be used."""
        now = self._clock.now()
        return not any(key.is_live(now) for key in self._by_id.values())

    def find(self, text: str) -> AccessKey | None:
        """The live key with this text; None: unknown, revoked, expired, or no key at all."""
        if self._monotonic() - self._read_at > STALE_S:
            raise Unavailable("keys cannot be checked: the store is unavailable; try again")
        key_id, now = id_of(text), self._clock.now()
        key = None if key_id is None else self._by_id.get(key_id)
        if not is_authentic(key, text) or key is None or not key.is_live(now):
            return None
        if now - self._written.get(key.id, 0) >= USE_EVERY_US:
            self._written[key.id] = now
            with self._lock:
                self._used[key.id] = now
        return key

    def ended(self, key: AccessKey) -> asyncio.Future[None]:
        """Done when the key is revoked or expires. Give it back with `forget`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting[future] = key.id
        return future

    def forget(self, future: asyncio.Future[None]) -> None:
        with self._lock:
            self._waiting.pop(future, None)
        future.cancel()

    # The thread ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="leasemill-keys", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10)

    def refresh(self) -> None:
        """Read keys if they changed, and write uses."""
        version = self._keys.version()
        if version != self._version:
            found = {key.id: key for key in self._keys.all()}
            self._by_id, self._version = found, version
            self._written = {key_id: at for key_id, at in self._written.items() if key_id in found}
        self._read_at = self._monotonic()
        self._end_waiting()
        with self._lock:
            used, self._used = self._used, {}
        if used:
            self._keys.use(used)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            self._refresh_or_log()
        self._refresh_or_log()

    def _refresh_or_log(self) -> None:
        try:
            self.refresh()
        except LeasemillError as error:
            if not self._is_failing:
                log.warning("keys were not read, or their use not written, will retry: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _end_waiting(self) -> None:
        now = self._clock.now()
        with self._lock:
            over = [
                future
                for future, key_id in self._waiting.items()
                if (key := self._by_id.get(key_id)) is None or not key.is_live(now)
            ]
        for future in over:
            with suppress(RuntimeError):  # its loop has ended
                future.get_loop().call_soon_threadsafe(_end, future)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
