"""Functions that are written once, as a sequence of commands, for sync and for async code.

A generator yields commands and is resumed with the result of each. `@Stepwise` makes a function of it that runs them on
a store; its `on_loop` does so without blocking the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar

from leasemill.kernel import commands as c
from leasemill.store.base import Store
from leasemill.store.steps import adrive, drive

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")
Steps: TypeAlias = Generator[c.Command[Any], Any, AnswerT]


def ask(command: c.Command[AnswerT]) -> Steps[AnswerT]:
    """`answer = yield from ask(command)`: one step, whose answer has the command's type."""
    answer: AnswerT = yield command
    return answer


class Stepwise(Generic[P, AnswerT]):
    """A function of a store and more, written as steps."""

    def __init__(self, function: Callable[Concatenate[Store, P], Steps[AnswerT]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __call__(self, store: Store, /, *args: P.args, **kwargs: P.kwargs) -> AnswerT:
        return drive(self._function(store, *args, **kwargs), store.run)

    async def on_loop(self, store: Store, /, *args: P.args, **kwargs: P.kwargs) -> AnswerT:
        """The same in async code."""
        return await adrive(self._function(store, *args, **kwargs), store.arun)
