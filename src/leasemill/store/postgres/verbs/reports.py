"""What the statements for reports on leases share: their parameters, and which of them a statement ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.rows import ABBREVIATED, Row, terms_numbers
from leasemill.store.postgres.wire.arrays import int8s, texts
from leasemill.store.postgres.wire.connections import Connection

NULL_TERMS: Final = int8s(terms_numbers(ABBREVIATED))
"""For statements that read terms, or write them."""
ReportT = TypeVar("ReportT", c.StartReport, c.LeaseRef, c.AckReport, c.NackReport, c.ReleaseReport)


def numbered(database: Database, connection: Connection, reports: Sequence[ReportT]) -> dict[int, ReportT]:
    """The reports by their jobs' numbers, ascending: remembered since the claim, else asked for; without unknown jobs.

    Statements find what belongs to a row by its number's place, `width_bucket(no, nos)`, which needs them in order.
    """
    known = database.numbers
    unknown = [report.job_id for report in reports if report.token not in known]
    asked: dict[str, int] = {}
    if unknown:
        asked = {job_id: no for no, job_id, *_ in database.all(connection, "members", {"ids": texts(unknown)})}
    found: dict[int, ReportT] = {}
    for report in reports:
        remembered = known.get(report.token)
        no = remembered[1] if remembered is not None and remembered[0] == report.job_id else asked.get(report.job_id)
        if no is not None:
            found[no] = report
    return {no: found[no] for no in sorted(found)}


def references(found: Mapping[int, Any]) -> dict[str, Any]:
    return {"nos": int8s(list(found)), "tokens": texts([report.token for report in found.values()])}


def done_of(row: Row, found: Mapping[int, ReportT]) -> Iterable[ReportT]:
    """The reports a statement answered for: all of them, or those it names."""
    count, nos, *_ = row
    return found.values() if count == len(found) else [found[no] for no in nos or ()]
