"""enqueue of many new jobs at once: COPY writes a page's rows in one record of the log, INSERT writes one for each.

For jobs without lanes, policies or rules, with ids drawn for this call alone: a known id fails, and all with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from psycopg.rows import tuple_row

from leasemill.kernel.model import JobSpec
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.values import headers_text
from leasemill.store.postgres.verbs.inserting import is_plain
from leasemill.store.postgres.wire.arrays import int8, texts
from leasemill.store.postgres.wire.connections import Connection
from leasemill.store.postgres.wire.cursors import PlainCursor

LEAST: Final = 200
"""Fewer are inserted: COPY takes four round trips more."""
HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"
JOB: Final = Struct(">hiqiqihi")
"""How a row of jobs begins: ten fields; no, created_at, priority, and the length of the id."""
READY: Final = Struct(">hiqiqihi")
"""A row of ready: four fields; available_at, seq, rank, and the length of the queue."""
LENGTH: Final = Struct(">i")
INT8: Final = Struct(">iq")
NULL: Final = LENGTH.pack(-1)


def can_copy(jobs: Sequence[JobSpec]) -> bool:
    return len(jobs) >= LEAST and all(map(is_plain, jobs))


def insert_many(database: Database, connection: Connection, jobs: Sequence[JobSpec], channel: str | None) -> None:
    """In the transaction that is open, on a connection of the store's own."""
    now, nos = database.one(connection, "many_begin", {"count": int8(len(jobs))})
    due_ats = [due_at(job, now) for job in jobs]
    _copy(database, connection, "many_jobs", _job_rows(jobs, nos, now))
    _copy(database, connection, "many_ready", _ready_rows(jobs, nos, due_ats))
    if channel is not None:
        queues = {job.queue if at <= now else "" for job, at in zip(jobs, due_ats, strict=True)}
        database.do(connection, "many_notify", {"channel": channel, "queues": texts(sorted(queues))})


def due_at(job: JobSpec, now: int) -> int:
    """E3: at once, after a delay, or at a time."""
    return now + job.delay_us if job.run_at is None else max(now, job.run_at)


def _copy(database: Database, connection: Connection, name: str, rows: list[bytes]) -> None:
    text, _ = database.sent(name, {})
    with PlainCursor(connection, row_factory=tuple_row) as cursor, cursor.copy(text) as copy:
        copy.write(b"".join([HEADER, *rows, TRAILER]))


def _job_rows(jobs: Sequence[JobSpec], nos: Sequence[int], now: int) -> list[bytes]:
    rows: list[bytes] = []
    begin, length = JOB.pack, LENGTH.pack
    for job, no in zip(jobs, nos, strict=True):
        job_id, queue, kind = job.id.encode(), job.queue.encode(), job.kind.encode()
        headers = headers_text(job.headers)
        rows += (
            begin(10, 8, no, 8, now, 2, job.priority, len(job_id)),
            job_id,
            length(len(queue)),
            queue,
            length(len(kind)),
            kind,
            length(len(job.payload)),
            job.payload,
            NULL if job.run_at is None else INT8.pack(8, job.run_at),
            INT8.pack(8, job.delay_us) if job.delay_us else NULL,
            NULL if headers is None else _text(headers),
        )
    return rows


def _ready_rows(jobs: Sequence[JobSpec], nos: Sequence[int], due_ats: Sequence[int]) -> list[bytes]:
    rows: list[bytes] = []
    for job, no, at in zip(jobs, nos, due_ats, strict=True):
        queue = job.queue.encode()
        rows += READY.pack(4, 8, at, 8, no, 2, 9 - job.priority, len(queue)), queue
    return rows


def _text(value: str) -> bytes:
    encoded = value.encode()
    return LENGTH.pack(len(encoded)) + encoded
