"""The store in a database of the project's: enqueue joins the transaction that Django has open there.

Outside of one, and for every other verb, it is `PostgresStore` with its own connections. What must never happen here: a
job that exists although the transaction it was enqueued in was rolled back.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import Error, connections

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import Job, JobSpec
from leasemill.store.base import Block
from leasemill.store.postgres.reading import get_job, read_jobs
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.transactions.adapters import UserConnection, adapter_of
from leasemill.store.postgres.transactions.drive import UserSteps, run_in_session
from leasemill.store.postgres.transactions.joined import JoinedBlock
from leasemill.store.postgres.transactions.using import BoundStore

AnswerT = TypeVar("AnswerT")


class DjangoStore(PostgresStore):
    """The jobs in the database of an alias."""

    def __init__(self, url: str, alias: str) -> None:
        self.alias = alias
        self._is_access_checked = False
        super().__init__(url)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        if isinstance(command, c.Enqueue | c.SealGroup) and in_transaction(self.alias):
            if isinstance(command, c.SealGroup):
                raise Invalid(
                    f"group {command.group_id!r} cannot be sealed inside transaction.atomic(): its members exist when "
                    "that has committed. Put the atomic block inside the group's, or seal it in transaction.on_commit()"
                )
            return cast(AnswerT, self.using(connections[self.alias]).run(command))
        if isinstance(command, c.Enqueue | c.CreateGroup):
            self._check_access()
        answer = super().run(command)
        if answer is None and isinstance(command, c.GetJob) and in_transaction(self.alias):
            return cast(AnswerT, self._own_job(command))
        return answer

    def _check_access(self) -> None:
        """Raise what Django raises in a test that may not use the database: our own connections would not ask.

        Without a test database such a test would write into the project's real one. Once for each store: code that may
        connect once has a test database, or is not a test.
        """
        if self._is_access_checked:
            return
        connection = connections[self.alias]
        was_connected = connection.connection is not None
        try:
            connection.ensure_connection()
        except Error:
            return  # the server cannot be reached, which the store reports itself
        if not was_connected:
            connection.close()
        self._is_access_checked = True

    def _own_job(self, query: c.GetJob) -> Job | None:
        """Return a job that was enqueued in this transaction, which no other connection sees yet."""
        connection: Any = connections[self.alias]
        if connection.connection is None or connection.needs_rollback:
            return None
        return self._seen_by_django(get_job(query))

    def _seen_by_django(self, steps: UserSteps[AnswerT]) -> AnswerT:
        """Run steps on the driver's connection below Django's: its query log and `assertNumQueries` see none of it."""
        session = adapter_of(connections[self.alias].connection)
        assert isinstance(session, UserConnection)
        return run_in_session(self._thread_driver.statements, session, steps)

    def take_all(self) -> list[JobSpec]:
        """Remove every job that Django's connection sees, and return what they were enqueued as: for tests."""
        schema = f'"{self.options.schema}"'
        with connections[self.alias].cursor() as cursor:
            cursor.execute(f"select no, id from {schema}.jobs order by no")
            found = cursor.fetchall()
            if not found:
                return []
            numbers, ids = [no for no, _ in found], [job_id for _, job_id in found]
            specs = {job.spec.id: job.spec for job in self._seen_by_django(read_jobs(ids=ids))}
            cursor.execute(f"delete from {schema}.ready where seq = any(%s)", [numbers])
            for table in ("arrivals", "unique_keys", "jobs"):
                cursor.execute(f"delete from {schema}.{table} where no = any(%s)", [numbers])
        return [specs[job_id] for job_id in ids]

    def using(self, connection: object) -> BoundStore:
        return super().using(_known(connection) if isinstance(connection, str) else connection)

    def block(self, lease: c.Lease, seconds_left: float) -> Block:
        """`ctx.commit()`: around what the ORM writes."""
        return self._django_block(lease, connections[self.alias])

    def joined_block(self, lease: c.Lease, session: object) -> JoinedBlock:
        """`ctx.commit("default")`, or with a session of another library."""
        if isinstance(session, str):
            return self._django_block(lease, _known(session))
        return super().joined_block(lease, session)

    def _django_block(self, lease: c.Lease, connection: Any) -> DjangoBlock:
        return DjangoBlock(self, self._known, self._thread_driver.statements, lease, connection)

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        if isinstance(command, c.Enqueue | c.SealGroup | c.GetJob):
            # In the thread whose connection Django uses for this code, which may be in a transaction.
            return cast(AnswerT, await sync_to_async(self.run)(cast(c.Command[Any], command)))
        return await super().arun(command)


class DjangoBlock(JoinedBlock):
    """A commit in a transaction of Django's, which begins and ends with it."""

    @property
    def connection(self) -> Any:
        """The driver's own: `tx.execute` and `tx.connection` are in the same transaction."""
        return super().connection.connection

    async def abegin(self) -> c.CommitOutcome | None:
        raise Invalid(
            "transactions of Django are sync: write the handler as `def`, or move the block, as `with ctx.commit() as "
            "tx`, into a function that you call with `await sync_to_async(...)`"
        )

    async def aroll_back(self) -> None:
        """Nothing was begun."""


def _known(alias: str) -> Any:
    if alias not in connections:
        raise Invalid(f"there is no database {alias!r}: DATABASES has {', '.join(map(repr, connections))}")
    return connections[alias]


def in_transaction(alias: str) -> bool:
    """Return True if what is written now, in this thread, is not durable before a commit that comes later."""
    connection: Any = connections[alias]
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.get_autocommit()
