"""`leasemill db check`: whether the derived tables follow from the others, and rebuilding them.

What must be so is written as queries that find what is not; `--rebuild` makes the claimable set, the lines of lanes,
requests, what retention goes by and the tallies again from jobs, leases, executions and marks, while nothing else runs.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from leasemill.store.postgres.statements import Statements

SHOWN: Final = 20


def check(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Every broken invariant, as a sentence; none for a sound store. Reads everything, in one statement."""
    found = Statements(schema)["check"]
    with psycopg.RawCursor(connection) as cursor:
        rows = cursor.execute(found.text, [SHOWN]).fetchall()
    return [f"{what}: job {job_id}" if job_id else str(what) for what, job_id in rows]


def rebuild(connection: psycopg.Connection[Any], schema: str) -> int:
    """Rebuild the claimable set and the lanes; returns how many jobs can be claimed. Writers wait meanwhile."""
    with connection.transaction():
        connection.execute(Statements(schema)["rebuild"].text, prepare=False)
        row = connection.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(schema, "ready"))).fetchone()
    return int(row[0]) if row else 0
