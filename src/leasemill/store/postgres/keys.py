"""The keys of a database: rows of a table, written rarely and durable as jobs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.errors import UniqueViolation

from leasemill.store.access_keys import KEYS_KEPT, AccessKey, name_is_taken, too_many
from leasemill.store.postgres.context import read
from leasemill.store.postgres.driver.thread import ThreadDriver
from leasemill.store.postgres.steps import Row, Steps, rows, transact, transaction
from leasemill.wire.routes import Role


class PostgresKeys:
    """A row for each key. Called from threads, never from an event loop."""

    def __init__(self, threads: ThreadDriver) -> None:
        self._threads = threads

    def version(self) -> str:
        ((version,),) = self._rows("access_keys_version")
        return str(version)

    def all(self) -> list[AccessKey]:
        return [_key(*one) for one in self._rows("access_keys")]

    def add(self, key: AccessKey) -> None:
        given = {
            "id": key.id,
            "name": key.name,
            "digest": key.digest,
            "roles": sorted(key.roles),
            "queues": key.queues,
            "created_at": key.created_at,
            "created_by": key.created_by,
            "expires_at": key.expires_at,
            "most": KEYS_KEPT,
        }
        if not self._threads.run(transact(lambda _: transaction(_add(key, given)), is_repeatable=False)):
            raise too_many()

    def revoke(self, key_id: str, *, at: int, by: str) -> AccessKey | None:
        found = self._rows("access_key_revoke", {"id": key_id, "at": at, "by": by})
        return _key(*found[0]) if found else None

    def use(self, used: Mapping[str, int]) -> None:
        self._rows("access_keys_use", {"ids": used, "ats": list(used.values())})

    def _rows(self, statement: str, given: Mapping[str, Any] | None = None) -> list[Row]:
        return self._threads.run(read(rows, statement, given or {}))


def _add(key: AccessKey, given: Mapping[str, Any]) -> Steps[bool]:
    try:
        yield from rows("access_keys_forget", {"most": given["most"]})
        return bool((yield from rows("access_key_add", given)))
    except UniqueViolation:
        raise name_is_taken(key.name) from None


def _key(
    key_id: str,
    name: str,
    digest: bytes,
    roles: list[str],
    queues: list[str],
    created_at: int,
    created_by: str,
    expires_at: int | None,
    revoked_at: int | None,
    revoked_by: str | None,
    last_used_at: int | None,
) -> AccessKey:
    return AccessKey(
        id=key_id,
        name=name,
        digest=digest,
        roles=frozenset(map(Role, roles)),
        queues=tuple(queues),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        revoked_by=revoked_by,
        last_used_at=last_used_at,
    )
