"""Verbs without I/O: each is a generator that yields the statements to send, and a driver resumes it with their rows.

There are two levels. `Steps` run on one connection: each step is a message, one or more statements that are sent
together, and the generator is resumed with the rows of each. A message that begins with BEGIN and does not end with
COMMIT leaves a transaction open for the next one. A `Verb` is made of transactions: each step is a `Transact`, which
is run from its beginning again when a connection was lost or another transaction was in the way, and the generator is
resumed with its result. Drivers throw what failed into the generator, which may know what to do.

What must never happen here: I/O, a thread, a loop, or a guess about what was committed. A `TransactionAttempt` says
what earlier attempts may have done, and what a process learns it learns after the message with COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from leasemill.store.postgres.statements import Execute

ResultT = TypeVar("ResultT")


Row: TypeAlias = tuple[Any, ...]

BEGIN: Final = Execute("begin", {})
COMMIT: Final = Execute("commit", {})
ROLLBACK: Final = Execute("rollback", {})

Message: TypeAlias = tuple[Execute, ...]
Steps: TypeAlias = Generator[Message, list[list[Row]], ResultT]


class TransactionAttempt(Protocol):
    """The facts about the attempts at a transaction before this one."""

    @property
    def number(self) -> int:
        """1 for the first."""

    @property
    def may_have_happened(self) -> bool:
        """True if an earlier one was sent and its answer lost: what looks like a caller's repeat may be our own."""


class Transact(NamedTuple):
    """A transaction, or a statement that is one, with what belongs to its repeats."""

    work: Callable[[TransactionAttempt], Steps[Any]]
    is_repeatable: bool = True
    """True if it may be sent again when its answer was lost."""


Verb: TypeAlias = Generator[Transact, Any, ResultT]


class RetryTransaction(Exception):
    """A row changed after it was read and before it was locked: try again."""


# Steps ---------------------------------------------------------------------------------------------------------------


def send(*calls: Execute) -> Steps[list[list[Row]]]:
    """Send one message; returns the rows of each of its statements."""
    return (yield calls)


def rows(statement: str, given: Mapping[str, Any]) -> Steps[list[Row]]:
    """Send one statement; returns its rows."""
    (found,) = yield (Execute(statement, given),)
    return found


def row(statement: str, given: Mapping[str, Any]) -> Steps[Row]:
    """Send one statement; returns its only row."""
    ((found,),) = yield (Execute(statement, given),)
    return found


def transaction(steps: Steps[ResultT]) -> Steps[ResultT]:
    """Run steps in a transaction: BEGIN goes with the first message, COMMIT follows the last. The driver rolls back
    what an exception leaves open."""
    begin: Message = (BEGIN,)
    is_open = False
    try:
        message = next(steps)
        while True:
            sent, begin = begin, ()
            is_open = True
            try:
                answer = yield sent + message
            except BaseException as error:  # noqa: BLE001  (it is for the steps to handle)
                message = steps.throw(error)
            else:
                message = steps.send(answer[len(sent) :])
    except StopIteration as end:
        if is_open:
            yield (COMMIT,)
        result: ResultT = end.value
        return result


# Verbs ---------------------------------------------------------------------------------------------------------------


def transact(work: Callable[[TransactionAttempt], Steps[ResultT]], *, is_repeatable: bool = True) -> Verb[ResultT]:
    """Run a transaction; returns its result."""
    result: ResultT = yield Transact(work, is_repeatable)
    return result
