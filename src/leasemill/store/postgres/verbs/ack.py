"""ack: leases that end DONE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.verbs.reports import done_of, numbered, references
from leasemill.store.postgres.wire.arrays import encoded, int8, texts
from leasemill.store.postgres.wire.connections import Connection


def ack(database: Database, connection: Connection, reports: Sequence[c.AckReport]) -> dict[str, c.AckOutcome]:
    found = numbered(database, connection, reports)
    ended = done_of(database.one(connection, "ack", _results(found)), found)
    return {report.job_id: c.Acked(report.job_id) for report in ended}


def ack_in_lane(database: Database, connection: Connection, reports: Sequence[c.AckReport]) -> dict[str, c.AckOutcome]:
    found = numbered(database, connection, reports)
    with connection.transaction() as transaction:
        ended = database.all(connection, "ack_in_lane", _results(found))
        if len(ended) < len(reports):
            transaction.force_rollback = True  # E6: a repeat among them tells who was next before the others ended
            return {}
        heads = advance(database, connection, [(queue, lane) for _, queue, lane, _ in ended])
    return {(job_id := found[no].job_id): c.Acked(job_id, heads.get((queue, lane))) for no, queue, lane, _ in ended}


def ack_offset(
    database: Database, connection: Connection, report: c.AckReport, queue: str, lane: str
) -> dict[str, c.AckOutcome]:
    (no,) = numbered(database, connection, [report]) or [None]
    if no is None:
        return {}
    given = {
        "no": int8(no),
        "token": report.token,
        "queue": queue,
        "lane": lane,
        "result": None if report.result is None else report.result.decode(),
    }
    with connection.transaction():
        database.all(connection, "lock_lanes", {"queues": texts([queue]), "lanes": texts([lane])})
        rows = database.all(connection, "ack_offset", given)
    if not rows:
        return {}
    ((next_id, next_offset, _),) = rows
    hint = None if next_id is None else c.LaneHint(next_id, next_offset)
    return {report.job_id: c.Acked(report.job_id, hint)}


def advance(
    database: Database, connection: Connection, lanes: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], c.LaneHint]:
    """N4: the next of each lane becomes head, in the transaction that has locked the lanes."""
    given = {"queues": texts([queue for queue, _ in lanes]), "lanes": texts([lane for _, lane in lanes])}
    heads = database.all(connection, "advance", given)
    database.positions.lower((queue, rank, at, seq) for queue, _, _, rank, at, seq in heads)
    return {(queue, lane): c.LaneHint(job_id, None) for queue, lane, job_id, *_ in heads}


def _results(found: Mapping[int, c.AckReport]) -> dict[str, Any]:
    results = [report.result for report in found.values()]
    return {
        **references(found),
        "results": encoded(results) if any(result is not None for result in results) else None,
    }
