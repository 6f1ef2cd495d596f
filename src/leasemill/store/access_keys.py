"""Keys of clients of `leasemill serve`: what is stored of them, and where.

A key is `lm_<id>_<secret>`. The id is public and finds the record; the secret has 256 random bits and is shown once,
when the key is created. What is stored is a SHA-256 digest of the whole text. A fast hash is right here: slow ones
protect what people choose, which can be guessed; 256 random bits cannot, and a server checks every request.

What must never happen here: a secret that is stored, logged or part of a message.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final, NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import replace

from leasemill.errors import Invalid, Refused
from leasemill.kernel.bounds import check_name, check_text
from leasemill.wire.routes import Role

ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
KEY: Final = re.compile(r"lm_([0-9a-f]{12})_[0-9a-f]{64}", re.ASCII)
PATTERN: Final = re.compile(r"[A-Za-z0-9_.:*?-]{1,100}", re.ASCII)
ALL_QUEUES: Final = ("*",)
KEYS_KEPT: Final = 1_000
"""The most keys in a store, revoked ones included: a server has all of them in memory."""
PATTERNS: Final = 100


class AccessKey(Struct, frozen=True, kw_only=True):
    """All that is known of a key: everything but its secret. Only the revocation and the last use ever change."""

    id: str
    name: str
    digest: bytes
    roles: frozenset[Role]
    queues: tuple[str, ...] = ALL_QUEUES
    created_at: int
    created_by: str
    expires_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None
    last_used_at: int | None = None

    def is_live(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class AccessKeys(Protocol):
    """A place for keys. Called from threads, never from an event loop."""

    def version(self) -> str:
        """Return a text that changes when a key is added or revoked. It may change for no reason. Read every second."""

    def all(self) -> list[AccessKey]:
        """List every key, also those that were revoked, the oldest first."""

    def add(self, key: AccessKey) -> None:
        """Store a new key; refused if a key that is not revoked has its name."""

    def revoke(self, key_id: str, *, at: int, by: str) -> AccessKey | None:
        """Revoke a key durably, and return it as it is then; a repeat changes nothing. None if there is no such key."""

    def use(self, used: Mapping[str, int]) -> None:
        """Record when keys were used last, by id. A time before the one that is stored changes nothing."""


def new_key(
    *,
    name: str,
    roles: Iterable[Role],
    now: int,
    by: str,
    queues: Iterable[str] = ALL_QUEUES,
    expires_at: int | None = None,
) -> tuple[AccessKey, str]:
    """A key that is not stored yet, and its text, which nobody can find out later."""
    check_name("key name", name)
    check_text("created by", by)
    key_roles, patterns = frozenset(roles), tuple(dict.fromkeys(queues))
    if not key_roles:
        raise Invalid(f"key {name!r} has no role: give it at least one of {', '.join(Role)}")
    if not 1 <= len(patterns) <= PATTERNS:
        raise Invalid(f"key {name!r} names {len(patterns)} patterns of queues: name 1 to {PATTERNS}")
    for pattern in patterns:
        if PATTERN.fullmatch(pattern) is None:
            raise Invalid(
                f"{pattern[:100]!r} is not a pattern of queues: write a queue's name, in which * stands for any "
                "characters and ? for one"
            )
    if expires_at is not None and expires_at <= now:
        raise Invalid(f"key {name!r} would have expired already: name a later time")
    key_id = secrets.token_hex(ID_BYTES)
    text = f"lm_{key_id}_{secrets.token_hex(SECRET_BYTES)}"
    key = AccessKey(
        id=key_id,
        name=name,
        digest=digest_of(text),
        roles=key_roles,
        queues=patterns,
        created_at=now,
        created_by=by,
        expires_at=expires_at,
    )
    return key, text


def digest_of(text: str) -> bytes:
    return sha256(text.encode()).digest()


def id_of(text: str) -> str | None:
    """Return the public part of a key; None if the text is not a key."""
    match = KEY.fullmatch(text)
    return None if match is None else match[1]


NO_DIGEST: Final = bytes(32)


def is_authentic(key: AccessKey | None, text: str) -> bool:
    """Whether this is the key's text. It takes the same time whatever is wrong with it, and if there is no such key."""
    is_same = hmac.compare_digest(NO_DIGEST if key is None else key.digest, digest_of(text))
    return is_same and key is not None


# Changes, the same wherever keys are ----------------------------------------------------------------------------------


def with_added(keys: Mapping[str, AccessKey], key: AccessKey) -> dict[str, AccessKey]:
    """Refuse a key whose name is taken, or one too many; revoked ones make room, the oldest first."""
    if any(one.name == key.name and one.revoked_at is None for one in keys.values()):
        raise name_is_taken(key.name)
    kept = dict(keys)
    for one in sorted(keys.values(), key=lambda one: one.revoked_at or 0):
        if len(kept) >= KEYS_KEPT and one.revoked_at is not None:
            del kept[one.id]
    if len(kept) >= KEYS_KEPT:
        raise too_many()
    return {**kept, key.id: key}


def name_is_taken(name: str) -> Refused:
    return Refused(f"there is a key named {name!r}: revoke it first, or choose another name")


def too_many() -> Refused:
    return Refused(f"there are {KEYS_KEPT:,} keys, which is the limit: revoke those that nobody uses")


def revoked(key: AccessKey, at: int, by: str) -> AccessKey:
    return key if key.revoked_at is not None else replace(key, revoked_at=at, revoked_by=by)


def used_at(key: AccessKey, at: int) -> AccessKey:
    return replace(key, last_used_at=max(at, key.last_used_at or 0))


class MemoryKeys:
    """The keys of a store in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, AccessKey] = {}
        self._version = 0

    def version(self) -> str:
        return str(self._version)

    def all(self) -> list[AccessKey]:
        with self._lock:
            return in_order(self._keys.values())

    def add(self, key: AccessKey) -> None:
        with self._lock:
            self._keys = with_added(self._keys, key)
            self._version += 1

    def revoke(self, key_id: str, *, at: int, by: str) -> AccessKey | None:
        with self._lock:
            key = self._keys.get(key_id)
            if key is None:
                return None
            self._keys[key_id] = revoked(key, at, by)
            self._version += 1
            return self._keys[key_id]

    def use(self, used: Mapping[str, int]) -> None:
        with self._lock:
            for key_id in used.keys() & self._keys.keys():
                self._keys[key_id] = used_at(self._keys[key_id], used[key_id])


def in_order(keys: Iterable[AccessKey]) -> list[AccessKey]:
    return sorted(keys, key=lambda key: (key.created_at, key.id))


class NoKeys:
    """The keys of a store that is reached through another process: they are managed at the store itself."""

    def version(self) -> str:
        self._refuse()

    def all(self) -> list[AccessKey]:
        self._refuse()

    def add(self, key: AccessKey) -> None:
        self._refuse()

    def revoke(self, key_id: str, *, at: int, by: str) -> AccessKey | None:
        self._refuse()

    def use(self, used: Mapping[str, int]) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Refused(
            "keys are not managed through a server: run leasemill keys where the server runs, with the URL of its store"
        )
