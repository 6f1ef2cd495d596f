"""Schedules as they are in their table, read."""

from __future__ import annotations

import msgspec

from leasemill.kernel import commands as c
from leasemill.kernel.schedule import Schedule
from leasemill.store.postgres.database import Database
from leasemill.store.postgres.exact.tables import decoder
from leasemill.store.postgres.wire.arrays import int8, texts
from leasemill.store.postgres.wire.connections import Connection

schedule_text = msgspec.json.Encoder().encode
schedule_of = decoder(Schedule)


def get_schedule(database: Database, connection: Connection, query: c.GetSchedule) -> Schedule | None:
    given = {"after": "", "names": texts([query.name]), "limit": int8(1)}
    found = database.all(connection, "list_schedules", given)
    return schedule_of(found[0][0]) if found else None


def list_schedules(database: Database, connection: Connection, query: c.ListSchedules) -> list[Schedule]:
    given = {"after": query.after, "names": None, "limit": int8(query.limit)}
    return [schedule_of(record) for (record,) in database.all(connection, "list_schedules", given)]


def due_schedules(database: Database, connection: Connection, query: c.DueSchedules) -> list[Schedule]:
    given = {"wall": int8(query.wall), "limit": int8(query.limit)}
    return [schedule_of(record) for (record,) in database.all(connection, "due_schedules", given)]


def next_tick(database: Database, connection: Connection, _query: c.NextTick) -> int | None:
    (tick_at,) = database.one(connection, "next_tick", {})
    return None if tick_at is None else int(tick_at)
