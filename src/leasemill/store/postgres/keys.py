"""The keys of a database: rows of a table, written rarely and durable as jobs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.errors import UniqueViolation

from leasemill.store.keys import KEYS_KEPT, AccessKey, name_is_taken, too_many
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8, int8s, texts
from leasemill.store.postgres.wire.connections import Connection, Connections
from leasemill.wire.routes import Role


class PostgresKeys:
    """A row for each key. Called from threads, never from an event loop."""

    def __init__(self, pool: Connections, database: Database) -> None:
        self._pool = pool
        self._database = database

    def version(self) -> str:
        ((version,),) = self._all("access_keys_version")
        return str(version)

    def all(self) -> list[AccessKey]:
        return [_key(*row) for row in self._all("access_keys")]

    def add(self, key: AccessKey) -> None:
        given = {
            "id": key.id,
            "name": key.name,
            "digest": key.digest,
            "roles": texts(sorted(key.roles)),
            "queues": texts(key.queues),
            "created_at": int8(key.created_at),
            "created_by": key.created_by,
            "expires_at": int8(key.expires_at),
            "most": int8(KEYS_KEPT),
        }

        def add(connection: Connection) -> bool:
            try:
                with connection.transaction():
                    self._database.do(connection, "access_keys_forget", {"most": given["most"]})
                    return bool(self._database.all(connection, "access_key_add", given))
            except UniqueViolation:
                raise name_is_taken(key.name) from None

        if not self._pool.run(add, is_repeatable=False):
            raise too_many()

    def revoke(self, key_id: str, *, at: int, by: str) -> AccessKey | None:
        rows = self._all("access_key_revoke", {"id": key_id, "at": int8(at), "by": by})
        return _key(*rows[0]) if rows else None

    def use(self, used: Mapping[str, int]) -> None:
        given = {"ids": texts(used), "ats": int8s(list(used.values()))}
        self._pool.run(lambda connection: self._database.do(connection, "access_keys_use", given))

    def _all(self, statement: str, given: Mapping[str, Any] | None = None) -> list[Any]:
        return self._pool.run(lambda connection: self._database.all(connection, statement, given or {}))


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
        digest=bytes(digest),
        roles=frozenset(map(Role, roles)),
        queues=tuple(queues),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        revoked_by=revoked_by,
        last_used_at=last_used_at,
    )
