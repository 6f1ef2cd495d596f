"""A server's keys in memory: changes arrive, uses are written now and then, and nothing is looked up on a request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from leasemill.errors import Unavailable
from leasemill.server.keyring import STALE_S, KeyRing
from leasemill.store.access_keys import AccessKey, MemoryKeys, new_key
from leasemill.testing.clock import ManualClock
from leasemill.wire.routes import Role

MINUTE = 60_000_000


class CountedKeys(MemoryKeys):
    """Keys that count what is asked of them, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.is_away = False

    def version(self) -> str:
        if self.is_away:
            raise Unavailable("away")
        self.asked.append("version")
        return super().version()

    def all(self) -> list[AccessKey]:
        self.asked.append("all")
        return super().all()

    def use(self, used: Mapping[str, int]) -> None:
        self.asked.append("use")
        super().use(used)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keys() -> CountedKeys:
    return CountedKeys()


@pytest.fixture
def ring(keys: CountedKeys, clock: ManualClock) -> KeyRing:
    return KeyRing(keys, clock=clock)


def added(keys: MemoryKeys, clock: ManualClock, **given: Any) -> tuple[AccessKey, str]:
    key, text = new_key(name="ci", roles=[Role.WORKER], now=clock.now(), by="ada", **given)
    keys.add(key)
    return key, text


def test_a_key_is_found_when_the_ring_has_looked(keys: CountedKeys, clock: ManualClock, ring: KeyRing) -> None:
    assert ring.is_empty
    key, text = added(keys, clock)
    assert ring.find(text) is None
    ring.refresh()
    assert ring.find(text) == key
    assert not ring.is_empty


@pytest.mark.parametrize("wrong", ["", "lm_", "lm_0123456789ab_" + "0" * 64, "Bearer", "\0", "é"])
def test_what_is_no_key_is_not_found(keys: CountedKeys, clock: ManualClock, ring: KeyRing, wrong: str) -> None:
    key, text = added(keys, clock)
    ring.refresh()
    assert ring.find(wrong) is None
    assert ring.find(f"lm_{key.id}_" + "0" * 64) is None
    assert ring.find(text + "0") is None


def test_a_revoked_key_is_not_found_any_more(keys: CountedKeys, clock: ManualClock, ring: KeyRing) -> None:
    key, text = added(keys, clock)
    ring.refresh()
    keys.revoke(key.id, at=clock.now(), by="ada")
    ring.refresh()
    assert ring.find(text) is None
    assert ring.is_empty


def test_a_key_expires_without_anybody_looking(keys: CountedKeys, clock: ManualClock, ring: KeyRing) -> None:
    _, text = added(keys, clock, expires_at=clock.now() + MINUTE)
    ring.refresh()
    assert ring.find(text) is not None
    clock.advance(us=MINUTE)
    assert ring.find(text) is None
    assert ring.is_empty


def test_requests_ask_nothing_of_the_store_and_an_unchanged_store_little(
    keys: CountedKeys, clock: ManualClock, ring: KeyRing
) -> None:
    _, text = added(keys, clock)
    ring.refresh()
    keys.asked.clear()
    for _ in range(1_000):
        assert ring.find(text) is not None
    assert keys.asked == []
    for _ in range(3):
        ring.refresh()
    assert keys.asked == ["version", "use", "version", "version"]


def test_the_last_use_is_written_at_most_once_a_minute(keys: CountedKeys, clock: ManualClock, ring: KeyRing) -> None:
    _, text = added(keys, clock)
    ring.refresh()
    keys.asked.clear()
    for _ in range(120):  # two minutes
        ring.find(text)
        ring.refresh()
        clock.advance(s=1)
    assert keys.asked.count("use") == 2
    assert keys.all()[0].last_used_at == clock.now() - MINUTE


def test_a_store_that_does_not_answer_is_trusted_for_a_while_and_then_no_key_is(
    keys: CountedKeys, clock: ManualClock
) -> None:
    now = [0.0]
    _, text = added(keys, clock)
    ring = KeyRing(keys, clock=clock, monotonic=lambda: now[0])
    keys.is_away = True
    now[0] = STALE_S
    with pytest.raises(Unavailable):
        ring.refresh()
    assert ring.find(text) is not None
    now[0] = STALE_S + 0.1
    with pytest.raises(Unavailable, match="keys cannot be checked"):
        ring.find(text)
    keys.is_away = False
    ring.refresh()
    assert ring.find(text) is not None


async def test_whoever_waits_is_notified_when_the_key_ends_and_nobody_else(
    keys: CountedKeys, clock: ManualClock, ring: KeyRing
) -> None:
    key, _ = added(keys, clock)
    other, _ = new_key(name="other", roles=[Role.WORKER], now=clock.now(), by="ada", expires_at=clock.now() + MINUTE)
    keys.add(other)
    ring.refresh()
    first, second = ring.ended(key), ring.ended(other)
    ring.refresh()
    await asyncio.sleep(0)
    assert not first.done()
    keys.revoke(key.id, at=clock.now(), by="ada")
    ring.refresh()
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (True, False)
    clock.advance(us=MINUTE)
    ring.refresh()
    await asyncio.sleep(0)
    assert second.done()
    ring.forget(first)
    ring.forget(second)
    assert ring._waiting == {}


def test_the_thread_looks_by_itself_and_writes_uses_when_it_ends(keys: CountedKeys) -> None:
    ring = KeyRing(keys)
    ring.start()
    try:
        key, text = new_key(name="ci", roles=[Role.WORKER], now=1, by="ada")
        keys.add(key)
        waited = ring._stopped
        for _ in range(600):
            if ring.find(text) is not None:
                break
            waited.wait(0.05)
        assert ring.find(text) is not None
    finally:
        ring.close()
    assert keys.all()[0].last_used_at is not None
