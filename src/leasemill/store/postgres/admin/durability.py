"""The server's settings for durability: whether a crash, or a failover, may lose accepted jobs.

`leasemill db check` shows it, and the first run of a process's reaper logs it. Nothing is changed here: the server is
the operator's.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from msgspec import Struct

from leasemill.store.postgres.statements import FILES

ROLE_IS_OFF: Final = (
    "synchronous_commit is off for this role: the store's own sessions set it to on, but what using(session) or "
    "leasemill.enqueue() put into other transactions may be lost if the server crashes; set it with ALTER ROLE"
)


class Durability(Struct, frozen=True):
    """As one session sees it."""

    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str
    standbys: int

    def warnings(self) -> list[str]:
        """Find the settings with which a crash of the server, or of its machine, may lose accepted jobs."""
        found: list[str] = []
        if self.fsync == "off":
            found.append("fsync is off: a crash of the server's machine may lose or damage every job; turn it on")
        if self.full_page_writes == "off":
            found.append(
                "full_page_writes is off: a crash of the server's machine may damage tables, unless its file system "
                "writes whole pages; turn it on"
            )
        return found

    def role_warnings(self) -> list[str]:
        """Find what holds for transactions of this role that are not the store's own."""
        if self.synchronous_commit != "off":
            return []
        return [ROLE_IS_OFF]

    def notes(self) -> list[str]:
        """Find the settings with which a failover may lose accepted jobs."""
        if not self.standbys:
            return []
        count = "1 standby" if self.standbys == 1 else f"{self.standbys} standbys"
        why = None
        if not self.synchronous_standby_names:
            why = "is empty"
        elif self.synchronous_commit in {"off", "local"}:
            why = f"is set, but synchronous_commit is {self.synchronous_commit}"
        if why is None:
            return []
        note = f"{count}, and synchronous_standby_names {why}: commits do not wait for a standby; if one is promoted, "
        return [note + "jobs that it has not received are lost, and fences are granted again"]


def durability(connection: psycopg.Connection[Any]) -> Durability:
    row = connection.execute(FILES["durability"].read_bytes()).fetchone()
    assert row is not None
    return Durability(*row)
