"""The store in a database of the project's: enqueue joins the transaction that Django has open there.

Outside of one, and for every other verb, it is `PostgresStore` with its own connections. What must never happen here: a
job that exists although the transaction it was enqueued in was rolled back.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import connections

from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.store.postgres.store import PostgresStore

AnswerT = TypeVar("AnswerT")


class DjangoStore(PostgresStore):
    """The jobs in the database of an alias."""

    def __init__(self, url: str, alias: str) -> None:
        self.alias = alias
        super().__init__(url)

    def run(self, command: c.Command[AnswerT]) -> AnswerT:
        if isinstance(command, c.Enqueue | c.SealGroup) and in_transaction(self.alias):
            if isinstance(command, c.SealGroup):
                raise Invalid(
                    f"group {command.group_id!r} cannot be sealed inside transaction.atomic(): its members exist when "
                    "that has committed. Put the atomic block inside the group's, or seal it in transaction.on_commit()"
                )
            return cast(AnswerT, self.using(connections[self.alias]).run(command))
        return super().run(command)

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT:
        if isinstance(command, c.Enqueue | c.SealGroup):
            # In the thread whose connection Django uses for this code, which may be in a transaction.
            return cast(AnswerT, await sync_to_async(self.run)(cast(c.Command[Any], command)))
        return await super().arun(command)


def in_transaction(alias: str) -> bool:
    """Whether what is written now, in this thread, is not durable before a commit that comes later."""
    connection: Any = connections[alias]
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.get_autocommit()
