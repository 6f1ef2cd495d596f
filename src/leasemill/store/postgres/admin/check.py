"""`leasemill db check`: whether the derived tables follow from the others, and making them anew.

What must be so is written as queries that find what is not; `--rebuild` makes the claimable set, the lines of lanes,
requests, what retention goes by and the tallies anew from jobs, leases, executions and marks, while nothing else runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg

from leasemill.store.postgres.wire.statements import check_schema, in_schema

FOLDER: Final = Path(__file__).parent
SHOWN: Final = 20


def check(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Every broken invariant, as a sentence; none for a sound store. Reads everything, in one statement."""
    check_schema(schema)
    text = in_schema((FOLDER / "check.sql").read_text(), schema)
    rows = connection.execute(text.encode(), {"shown": SHOWN}).fetchall()
    return [f"{what}: job {job_id}" if job_id else str(what) for what, job_id in rows]


def rebuild(connection: psycopg.Connection[Any], schema: str) -> int:
    """Make the claimable set and the lanes anew; answers how many jobs can be claimed. Writers wait meanwhile."""
    check_schema(schema)
    with connection.transaction():
        connection.execute(in_schema((FOLDER / "rebuild.sql").read_text(), schema).encode(), prepare=False)
        row = connection.execute(in_schema("select count(*) from leasemill.ready", schema).encode()).fetchone()
    return int(row[0]) if row else 0
