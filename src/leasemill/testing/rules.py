"""`@rule("L3", "X1")`: which rules of docs/contract.md or docs/log-format.md a test proves.

The names are read from the source, never at run time: the decorator only keeps them on the test, so it costs
nothing and needs no test framework. Every rule of the contract must be named by at least one test.
"""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])


def rule(*rule_ids: str) -> Callable[[Test], Test]:
    """Mark a test function or class as proof of these rules."""

    def mark(test: Test) -> Test:
        setattr(test, "__rules__", rule_ids)  # noqa: B010 (mypy knows no such attribute)
        return test

    return mark
