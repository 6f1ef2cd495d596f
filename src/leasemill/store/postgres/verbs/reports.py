"""What the statements for reports on leases share: their parameters, and which of them a statement answered for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from leasemill.kernel import commands as c
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.wire.arrays import int8s, texts
from leasemill.store.postgres.wire.connections import Row

ReportT = TypeVar("ReportT", c.StartReport, c.LeaseRef, c.AckReport, c.NackReport, c.ReleaseReport)


def known(database: Database, reports: Sequence[ReportT]) -> dict[int, ReportT]:
    """The reports on leases granted here, by their jobs' numbers, ascending.

    Statements find what belongs to a row by `width_bucket(no, nos)`, which needs the numbers in order.
    """
    found: dict[int, ReportT] = {}
    for report in reports:
        held = database.leases.get(report.token)
        if held is not None and held.job_id == report.job_id:
            found[held.no] = report
    return {no: found[no] for no in sorted(found)}


def references(found: Mapping[int, Any]) -> dict[str, Any]:
    return {"nos": int8s(list(found)), "tokens": texts([report.token for report in found.values()])}


def answered(row: Row, found: Mapping[int, ReportT]) -> Iterable[ReportT]:
    """All of the reports, or those that the statement names."""
    count, nos, *_ = row
    return found.values() if count == len(found) else [found[no] for no in nos or ()]
