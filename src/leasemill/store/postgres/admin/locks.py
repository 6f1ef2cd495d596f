"""How a migration gets its locks while others work: it asks for a moment, gives way, and asks again.

While it waits for a table, everybody who needs that table waits behind it. So it waits for less than the server's
`deadlock_timeout`: it gives way before a deadlock is looked for, and no worker's transaction is chosen to fail. One
kind of holder needs a longer wait: autovacuum gives way to others, but only to those that have waited that long. Knows
no driver: `leasemill db migrate` and Django's migrations bring their own. What must never happen here: a wait
without an end, or one of which nobody can see what it is for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from leasemill.errors import Unavailable

ResultT = TypeVar("ResultT")
Query: TypeAlias = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
"""Runs a statement outside of the attempt's transaction, or after its rollback, and returns the rows."""
OnWait: TypeAlias = Callable[[str], None]
"""Called with a sentence every few seconds while a lock is not free."""

PATIENCE_S: Final = 60.0
"""For each version of the tables."""
LOCK_TIMEOUT_MS: Final = 300
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0
"""So that others are held up for a small part of the time."""
FIRST_REPORT_S: Final = 1.0
REPORT_EVERY_S: Final = 5.0
GIVE_WAY: Final = frozenset({"55P03", "40P01"})
"""SQLSTATE of a lock that was not free in time, and of a deadlock."""
DEADLOCK_TIMEOUT: Final = "select setting::int8 from pg_settings where name = 'deadlock_timeout'"
HOLDERS: Final = """
select activity.pid, activity.usename::text, activity.application_name, activity.state,
    extract(epoch from clock_timestamp() - activity.xact_start)::int8, bool_or(held.locktype = 'advisory')
from pg_locks as held left join pg_stat_activity as activity on activity.pid = held.pid
where held.granted and held.pid is distinct from pg_backend_pid()
    and held.database = (select oid from pg_database where datname = current_database())
    and (held.relation in (
            select pg_class.oid from pg_class join pg_namespace on pg_namespace.oid = relnamespace where nspname = %s)
        or held.locktype = 'advisory' and held.objsubid = 1
            and held.classid::int8 << 32 | held.objid::int8 = hashtextextended(%s, 0))
    and (activity.xact_start is null or activity.xact_start < clock_timestamp() - interval '300 milliseconds')
group by activity.pid, activity.usename, activity.application_name, activity.state, activity.xact_start
order by activity.xact_start nulls last, activity.pid
limit 3
"""
"""Transactions that have been open for longer than a lock is waited for. A role sees no state and no age of others'."""


class LockHolder(NamedTuple):
    """A transaction that holds a lock on a table of the schema, or the lock of those who migrate."""

    pid: int | None
    """None: it is prepared (two-phase commit), and no session's."""
    user: str | None
    """None: it is a process of the server, such as autovacuum."""
    application: str | None
    state: str | None
    open_for_s: int | None
    is_migrating: bool

    def sentence(self) -> str:
        if self.pid is None:
            return "a prepared transaction (see pg_prepared_xacts)"
        if self.user is None:
            return f"process {self.pid} of the server (autovacuum)"
        facts = [f"user {self.user}"]
        if self.application:
            facts.append(f"application {self.application}")
        if self.is_migrating:
            facts.append("migrating")
        if self.state and self.open_for_s is not None:
            facts.append(f"{self.state}, its transaction open for {self.open_for_s} s")
        return f"session {self.pid} ({', '.join(facts)})"


def lock_name(schema: str) -> str:
    """Return the name of the advisory lock that every change of a schema holds."""
    return f"leasemill migrate {schema}"


def keep_trying(
    attempt: Callable[[int], ResultT],
    query: Query,
    schema: str,
    what: Callable[[], str],
    on_wait: OnWait,
    patience_s: float = PATIENCE_S,
) -> ResultT:
    """What `attempt` returns. It gets the milliseconds to wait for a lock, and when it fails it has been rolled back.

    `what`: what is being attempted.
    """
    began_s = time.monotonic()
    reported_s = began_s + FIRST_REPORT_S - REPORT_EVERY_S
    pause_s = FIRST_PAUSE_S
    timeout_ms = LOCK_TIMEOUT_MS
    while True:
        try:
            return attempt(timeout_ms)
        except Exception as error:  # of any driver: its code decides, and what is not about locks is passed on
            if _sqlstate(error) not in GIVE_WAY:
                raise
            holders = _holders(query, schema)
            now_s = time.monotonic()
            if now_s - began_s >= patience_s:
                raise Unavailable(_given_up(schema, what(), now_s - began_s, holders)) from error
        if now_s - reported_s >= REPORT_EVERY_S:
            reported_s = now_s
            on_wait(f"{what()} waits for a lock held by {_listed(holders)}")
        has_autovacuum = any(holder.user is None and holder.pid is not None for holder in holders)
        timeout_ms = _longer_ms(query) if has_autovacuum else LOCK_TIMEOUT_MS
        time.sleep(random.uniform(0.5, 1.0) * pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _given_up(schema: str, what: str, waited_s: float, holders: Sequence[LockHolder]) -> str:
    return (
        f"{what} was not applied to the schema {schema!r}: for {waited_s:.0f} s it did not get its locks, which "
        f"{_listed(holders)} held; what was applied before it stays, and workers go on: repeat the command when those "
        "transactions have ended, or end them (pg_terminate_backend)"
    )


def _listed(holders: Sequence[LockHolder]) -> str:
    return "; ".join(holder.sentence() for holder in holders) or "short transactions, one after another"


def _holders(query: Query, schema: str) -> list[LockHolder]:
    query("select pg_stat_clear_snapshot()", [])  # in a transaction what was read once is what is read again
    return [LockHolder(*row) for row in query(HOLDERS, [schema, lock_name(schema)])]


def _longer_ms(query: Query) -> int:
    """Long enough for the server to ask autovacuum to give way."""
    ((deadlock_timeout_ms,),) = query(DEADLOCK_TIMEOUT, [])
    return int(deadlock_timeout_ms) + LOCK_TIMEOUT_MS


def _sqlstate(error: Exception) -> str | None:
    """Return the SQLSTATE of an error of psycopg's or psycopg2's, or of one of Django's that it caused."""
    for one in (error, error.__cause__):
        for name in ("sqlstate", "pgcode"):
            code = getattr(one, name, None)
            if isinstance(code, str):
                return code
    return None
