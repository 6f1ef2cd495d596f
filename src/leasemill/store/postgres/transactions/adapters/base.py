"""A connection or session of the user's, as far as we use it.

Our statements are sent the way the user's own are, through the driver or framework, so that its transaction, its events
and its errors are what they always are. What must never happen here: to begin, commit or roll back anything outside
`ctx.commit(session)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeAlias

from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Row

NOT_HELD: Final = "LM001"
"""The SQLSTATE of a commit that must not happen: docs/postgres.md."""
NOT_SERIALIZABLE: Final = "40001"
"""Where a transaction's isolation is stricter than ours: the lease has changed since its snapshot."""
LOST: Final = ("08", "57P")
"""How the SQLSTATE of an error begins after which no further reply arrives; what was sent last may have happened."""


class UserConnection(ABC):
    """In sync code."""

    is_marked: ClassVar[bool] = False
    """True if a block's transaction is marked, so that one that was ended by hand is noticed at its end."""

    @property
    @abstractmethod
    def connection(self) -> object:
        """The connection or session that the user gave us."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what cannot carry our statements, before any is sent."""

    @abstractmethod
    def commits_each_statement(self) -> bool:
        """Return True if a statement that is sent now is a transaction of its own."""

    @abstractmethod
    def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]:
        """Send one of our statements; each returns rows."""

    # For `ctx.commit(session)`

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction, unless one is open: then the commit joins it."""

    @abstractmethod
    def is_open(self) -> bool:
        """Return True if the transaction is still the one it was at `begin`."""

    @abstractmethod
    def flush(self) -> None:
        """Send what the session holds back."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def roll_back(self) -> None:
        """Any number of times, whatever the state of the connection."""


class AsyncUserConnection(ABC):
    """`UserConnection` on an event loop."""

    is_marked: ClassVar[bool] = False

    @property
    @abstractmethod
    def connection(self) -> object: ...

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def commits_each_statement(self) -> bool: ...

    @abstractmethod
    async def rows(self, statement: Statement, given: Mapping[str, Any]) -> list[Row]: ...

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    def is_open(self) -> bool: ...

    @abstractmethod
    async def flush(self) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def roll_back(self) -> None: ...


AnyUserConnection: TypeAlias = UserConnection | AsyncUserConnection


def sqlstate(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error, or of one that a framework has wrapped; None: not sent by the server."""
    seen: BaseException | None = error
    while seen is not None:
        for name in ("sqlstate", "pgcode"):
            code = getattr(seen, name, None)
            if isinstance(code, str):
                return code
        wrapped = getattr(seen, "orig", None)
        seen = wrapped if isinstance(wrapped, BaseException) else seen.__cause__
    return None


def may_have_happened(error: BaseException) -> bool:
    """Return True if what failed may have been carried out all the same: the server did not refuse it."""
    code = sqlstate(error)
    return code is None or code.startswith(LOST)


def may_be_of_the_lease(error: BaseException) -> bool:
    """Return True if the server refused it since the lease is not held: the store knows."""
    return sqlstate(error) in {NOT_HELD, NOT_SERIALIZABLE}
