"""acquire: the lease on one offset, in one statement."""

from __future__ import annotations

from leasemill.kernel import commands as c
from leasemill.kernel.verbs.acquire import offset_id
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.rows import policy_text, terms_of
from leasemill.store.postgres.verbs.claim import settling
from leasemill.store.postgres.verbs.enqueue import spec_of
from leasemill.store.postgres.wire.arrays import int8
from leasemill.store.postgres.wire.connections import Connection


def acquire(database: Database, connection: Connection, request: c.AcquireRequest) -> c.Acquired | c.Backlogged | None:
    """None: the lane is new, the offset is known, or its turn is not now."""
    given = {
        "id": offset_id(request.queue, request.lane, request.offset),
        "queue": request.queue,
        "lane": request.lane,
        "offset": int8(request.offset),
        "kind": request.kind,
        "payload": request.payload.decode(),
        "policy": policy_text(request.policy),
        "token": request.token,
        "worker": request.worker,
        **settling(),
    }
    rows = database.all(connection, "acquire", given)
    if not rows:
        return None
    (row,) = rows
    spec = spec_of(row)
    created_at, no, fence, leased_at, expires_at, terms = row[10:]
    if fence is None:
        return c.Backlogged(spec.id)
    database.remember([(request.token, spec.id, no)])
    return c.Acquired(
        c.Lease(
            spec,
            request.token,
            1,
            fence,
            request.worker,
            leased_at,
            expires_at,
            terms_of(terms),
            retries=0,
            expirations=0,
            created_at=created_at,
        )
    )
