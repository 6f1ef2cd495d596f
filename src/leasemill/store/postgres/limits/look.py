"""Whether a claim from queues with limits would be granted anything: asked without claiming."""

from __future__ import annotations

from typing import Final

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.limits.claim import Limited
from leasemill.store.postgres.wire.arrays import texts
from leasemill.store.postgres.wire.connections import Connection

NO_TOKEN: Final = "-"


def may_grant(database: Database, connection: Connection, queues: tuple[str, ...]) -> bool:
    """Jobs that it finds behind full limits are parked, as a claim does: nobody looks at them again."""
    given = {"request_id": None, "request_key": None, "waits": False, "tokens": texts([])}
    command = c.Claim("", queues, 1, [NO_TOKEN])
    looked = Limited(database, connection, command, given, 0).run(grants=False)
    return looked.may_grant or looked.is_unfinished
