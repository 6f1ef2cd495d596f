"""Whatever waits for a store has a twin for async code, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from leasemill import App, Chain, ChainHandle, GroupHandle, JobHandle, JobType
from leasemill.api.group import AppGroups, OwnGroup
from leasemill.api.schedules import Schedules

WITHOUT_STORE = {
    App: {
        "around",
        "bound_to",
        "close",
        "cron",
        "entered_lifespan",
        "group",
        "handle",
        "job",
        "lifespan",
        "named",
        "on_enqueue",
        "on_failure",
        "on_lost",
        "on_retry",
        "on_start",
        "on_success",
    },
    Chain: {"check_alone", "followup", "handle", "in_group", "is_sent_first", "template"},
    ChainHandle: {"result_of"},
    GroupHandle: set[str](),
    AppGroups: set[str](),
    OwnGroup: {"enqueue"},
    JobHandle: {"result_of"},
    JobType: {"call", "followup_call", "options", "using"},
    Schedules: {"declare"},
}
"""Methods that no web handler waits for: they declare, make or choose something."""


def methods(kind: type) -> dict[str, Any]:
    return {name: it for name, it in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def twin(name: str) -> str:
    return {"wait": "await_end"}.get(name, f"a{name}")  # `await` is a word of Python's


@pytest.mark.parametrize("kind", WITHOUT_STORE)
def test_every_method_that_uses_the_store_has_an_async_twin(kind: type) -> None:
    found = methods(kind)
    waiting = {name for name, it in found.items() if not inspect.iscoroutinefunction(it)} - WITHOUT_STORE[kind]
    assert {name for name in waiting if twin(name) not in found} == set()
    assert {name for name in waiting if not inspect.iscoroutinefunction(found[twin(name)])} == set()


@pytest.mark.parametrize("kind", WITHOUT_STORE)
def test_twins_take_the_same_parameters(kind: type) -> None:
    found = methods(kind)
    for name in [name for name in found if twin(name) in found]:
        one, other = (inspect.signature(found[it]).parameters for it in (name, twin(name)))
        assert [(it.name, it.kind, it.default) for it in one.values()] == [
            (it.name, it.kind, it.default) for it in other.values()
        ], f"{kind.__name__}.{name}"
