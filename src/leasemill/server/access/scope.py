"""Which queues a key is for: patterns in which `*` stands for any characters and `?` for one."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from leasemill.store.access_keys import ALL_QUEUES, KEYS_KEPT, AccessKey
from leasemill.wire.problems import Denied, Problem

ALL: Final = ALL_QUEUES[0]


class Scope:
    """The queues of one key."""

    def __init__(self, key_name: str, patterns: tuple[str, ...]) -> None:
        self.key_name = key_name
        self.patterns = patterns
        self.is_all = ALL in patterns
        self._regex = re.compile("|".join(translate(pattern) for pattern in patterns))

    def has(self, queue: str) -> bool:
        return self.is_all or self._regex.match(queue) is not None

    def check(self, queue: str, item: str) -> None:
        """Refuse what is in another queue; `item` is what the client named, which must not learn the queue."""
        if not self.has(queue):
            raise self.outside(item)

    def outside(self, item: str) -> Exception:
        return forbidden(f"{item} is outside of key {self.key_name!r}, which is for {', '.join(self.patterns)}", item)


def scope_of(key: AccessKey) -> Scope:
    return _scope(key.name, key.queues)


@lru_cache(KEYS_KEPT)
def _scope(key_name: str, patterns: tuple[str, ...]) -> Scope:
    return Scope(key_name, patterns)


def forbidden(detail: str, item: str | None = None) -> Denied:
    """How a key's client learns that it may not, and which item it was."""
    status = HTTPStatus.FORBIDDEN
    return Denied(Problem(status.value, status.phrase, "forbidden", detail, field=item))
