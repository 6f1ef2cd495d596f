"""Whatever waits for a store has a twin for async code, with the same parameters."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from leasemill import App, Chain, ChainHandle, GroupHandle, JobHandle, JobType, NotFound, Order, Store
from leasemill.api.group import AppGroups, OwnGroup
from leasemill.api.schedules import Schedules
from leasemill.kernel.command import Command
from leasemill.kernel.model import JobSpec, Rules
from leasemill.store.memory import MemoryStore
from leasemill.store.operations import StoreOperations

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
    Store: {
        *{"run", "close", "using", "block", "joined_block", "watch", "watch_end", "watch_cancellations"},
        *{"keep_up", "pulse"},  # of one thread, which reads often
        *{"room", "set_clock"},  # of a folder, for operators
        *{"enqueue", "claim", "start", "extend", "commit", "ack", "nack", "release", "expire", "death", "acquire"},
        *{"create_group", "seal_group"},
    },
}
"""Methods that no web handler waits for: they declare, make or choose something. Of a store also its verbs: apps and
workers, which have twins of their own, run them as commands."""


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


class Recording(StoreOperations):
    """A store that keeps the commands it was given, and answers nothing."""

    def __init__(self) -> None:
        self.commands: list[Command[Any]] = []

    def run(self, command: Command[Any]) -> Any:
        self.commands.append(command)

    async def arun(self, command: Command[Any]) -> Any:
        self.commands.append(command)


METHODS = methods(Recording)
IN_SEVERAL_STEPS = {"cancel_group", "order_worker", "run"}


@pytest.mark.parametrize("name", sorted({it for it in METHODS if twin(it) in METHODS} - IN_SEVERAL_STEPS))
async def test_a_twin_of_a_store_runs_the_same_command(name: str) -> None:
    store = Recording()
    parameters = inspect.signature(getattr(store, name)).parameters
    given: dict[str, Any] = {it: {it: it} if it == "limits" else it for it in parameters}  # each value shows its place
    getattr(store, name)(**given)
    await getattr(store, twin(name))(**given)
    one, other = store.commands
    assert one == other


async def test_a_group_is_cancelled_and_a_worker_ordered_in_async_code_as_in_other_code() -> None:
    with MemoryStore() as store:
        store.create_group("group")
        store.enqueue([JobSpec("job", "queue", "kind", rules=Rules(group="group"))])
        assert await store.acancel_group("group", by="ann", reason="over") == ["job"]
        with pytest.raises(NotFound, match="there is no worker 'mill'"):
            await store.aorder_worker("mill", Order.STOP, by="ann", reason="over")
