"""A group is cancelled with the groups in it, page by page. Rule B3.

The group is sealed first, so that no more groups are made in it; then come those that are there, and at last what their
ends have enqueued in it. Cut off in the middle, it is repeated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Final, Protocol, TypeVar

from leasemill.kernel import commands as c

PAGE: Final = 1_000

Steps = Generator[c.Command[Any], Any, None]
"""Commands to run, in order; their answers are sent back."""

AnswerT = TypeVar("AnswerT")


class CommandRunner(Protocol):
    """A store, as far as it is needed here."""

    def run(self, command: c.Command[AnswerT]) -> AnswerT: ...

    async def arun(self, command: c.Command[AnswerT]) -> AnswerT: ...


def cancelled(store: CommandRunner, group_id: str, by: str, reason: str) -> Iterator[c.Operated]:
    """What was cancelled, as it happens."""
    steps, answer = _steps(group_id, by, reason), None
    while (command := _next(steps, answer)) is not None:
        answer = store.run(command)
        if isinstance(answer, c.Operated):
            yield answer


async def acancelled(store: CommandRunner, group_id: str, by: str, reason: str) -> AsyncIterator[c.Operated]:
    steps, answer = _steps(group_id, by, reason), None
    while (command := _next(steps, answer)) is not None:
        answer = await store.arun(command)
        if isinstance(answer, c.Operated):
            yield answer


def _next(steps: Steps, answer: Any) -> c.Command[Any] | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _steps(group_id: str, by: str, reason: str) -> Steps:
    yield from _members(group_id, by, reason)
    last = ""
    while nested := (yield c.ListGroups(PAGE, open_only=True, after=last, parent=group_id)):
        for view in nested:
            yield from _steps(view.id, by, reason)
        last = nested[-1].id
    if last:
        yield from _members(group_id, by, reason)  # B7: the callbacks of those groups


def _members(group_id: str, by: str, reason: str) -> Steps:
    after: int | None = 0
    while after is not None:
        operated: c.Operated = yield c.CancelGroup(group_id, by, reason, PAGE, after)
        after = operated.after
