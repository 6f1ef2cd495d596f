"""The PostgreSQL store of a test, which remembers what was enqueued in transactions of the test's own.

A suite that rolls back after each test never commits such a job: nothing runs it, and nothing says so. The hint that is
logged here is what pytest shows beside the assertion that failed. Imported only for tests on PostgreSQL.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from leasemill.kernel import commands as c
from leasemill.operator.wording import counted
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.transactions.using import BoundStore
from leasemill.store.system import Clock, Entropy

AnswerT = TypeVar("AnswerT")

log = logging.getLogger("leasemill.testing")


class TestPostgresStore(PostgresStore):
    """A `PostgresStore` that remembers the ids of jobs that were enqueued with `using`."""

    __test__ = False  # pytest: a class of ours

    def __init__(self, url: str, *, clock: Clock | None = None, entropy: Entropy | None = None) -> None:
        self._joined: list[str] = []
        super().__init__(url, clock=clock, entropy=entropy)

    def using(self, connection: object) -> BoundStore:
        statements = self._thread_driver.statements
        return _Remembering(self._joined, self, self._known, statements, self._notifier, self.use_queues, connection)

    def warn_of_uncommitted(self) -> None:
        """Log a hint if such jobs are not there."""
        missing = [job_id for job_id in self._joined if self.job(job_id) is None]
        self._joined.clear()
        if missing:
            log.warning(
                "nothing ran: %s enqueued with using(...) in a transaction that has not committed, or was rolled back. "
                "A test that rolls back at its end has to commit instead: see Tests in the guide to SQLAlchemy",
                counted(len(missing), "job was", "jobs were"),
            )


class _Remembering(BoundStore):
    def __init__(self, joined: list[str], *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # as its own
        self._joined = joined

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        answer = super().run(command)
        self._remember(command)
        return answer

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        answer = await super().arun(command)
        self._remember(command)
        return answer

    def _remember(self, command: object) -> None:
        if isinstance(command, c.Enqueue):
            self._joined.extend(job.id for job in command.jobs)
