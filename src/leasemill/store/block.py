"""What a store does around a commit's block, from entering it to the answer.

Most stores do nothing before the answer is asked for: the commit is one record. PostgreSQL has a transaction open
meanwhile, for the user's own writes (`store/postgres/transactions/block.py`).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from leasemill.errors import Invalid
from leasemill.kernel import commands as c

AnswerT = TypeVar("AnswerT")


class Runs(Protocol):
    def run(self, command: c.Command[AnswerT]) -> AnswerT: ...
    async def arun(self, command: c.Command[AnswerT]) -> AnswerT: ...


class Block:
    """A commit's block on a store that has no tables of the user's."""

    def __init__(self, store: Runs) -> None:
        self._store = store

    @property
    def connection(self) -> Any:
        """The connection whose transaction the commit joins."""
        raise Invalid(
            "tx.execute and tx.connection need a store on PostgreSQL; for a database beside this store write "
            "`with ctx.once(connection)`"
        )

    def begin(self) -> c.CommitOutcome | None:
        """Before the block runs. An answer: it must not run, this is how the commit ended."""
        return None

    def commit(self, command: c.Commit) -> c.CommitOutcome | None:
        """Behind the block; again after Unavailable. None: it did not happen, and the lease is as it was."""
        return self._store.run(command)

    def roll_back(self) -> None:
        """The block ended with an error; any number of times."""

    async def abegin(self) -> c.CommitOutcome | None:
        return None

    async def acommit(self, command: c.Commit) -> c.CommitOutcome | None:
        return await self._store.arun(command)

    async def aroll_back(self) -> None:
        pass
