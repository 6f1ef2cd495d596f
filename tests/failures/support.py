"""What the catalogue's tests share: taking one check out of the running code, and a machine that loses its power.

"Without the guard" is never another program: it is the shipped code with one check taken out, found by its text, so
that a check that has moved makes the test fail instead of showing nothing.
"""

from __future__ import annotations
import __future__

import ast
import os
import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import pytest

from leasemill.kernel import machine
from leasemill.kernel.commands import Lease
from leasemill.kernel.transitions import executions
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.conformance import Harness
from leasemill.testing.conformance.steps import OTHER, claim, committed, enqueue_and_claim, started
from tests.crash.lab import open_simulated
from tests.kernel.mutations import MUTATIONS
from tests.lab.faults import SimulatedDisk, SimulatedMachine
from tests.lab.mutations import ROOT


def without(patch: pytest.MonkeyPatch, name: str) -> None:
    """Take out what a mutation of tests/kernel/mutations.py takes out, until the test ends."""
    accept_every_event(patch)
    mutation = next(one for one in MUTATIONS if one.name == name)
    for file, old, new in mutation.changes:
        replace(patch, f"leasemill.kernel.{file.removesuffix('.py').replace('/', '.')}", old, new)
    for command, rules in run_path(machine.__file__)["VERBS"].items():  # the table holds functions: make it of these
        patch.setitem(machine.VERBS, command, rules)


def accept_every_event(patch: pytest.MonkeyPatch) -> None:
    """`apply` refuses what a command without its guard decides; this shows what would follow if it did not."""
    swap(patch, executions.does_not_follow, lambda _event, _why: None)


def effects_after_commit(harness: Harness, end: Callable[[Harness, Lease], object]) -> list[str]:
    """A commits, and its lease ends before its ack; whoever gets the job then commits too. Who applied the effect?"""
    lease = enqueue_and_claim(harness)
    started(harness, lease)
    committed(harness, lease)
    applied = [lease.worker]
    end(harness, lease)
    for again in claim(harness, worker=OTHER):
        committed(harness, again)
        applied.append(again.worker)
    return applied


def environment_without(*names: str) -> dict[str, str]:
    """For a worker process whose code lacks what the mutations take out."""
    path = os.pathsep.join(map(str, (Path(__file__).parent / "unguarded", ROOT)))
    return {"LEASEMILL_TEST_WITHOUT": "\n".join(names), "PYTHONPATH": path}


def replace(patch: pytest.MonkeyPatch, module_name: str, old: str, new: str) -> None:
    """In the functions of a module, this text becomes that one; wherever else they were imported to as well."""
    module = import_module(module_name)
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, f"this is in {module_name} {source.count(old)} times, not once:\n{old}"
    before, after = (_functions(text) for text in (source, source.replace(old, new)))
    changed = [name for name, function in after.items() if ast.dump(function) != ast.dump(before[name])]
    assert changed, f"no function of {module_name} is another without it:\n{old}"
    for name in changed:
        swap(patch, getattr(module, name), _compiled(module, after[name]))


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _compiled(module: ModuleType, function: ast.FunctionDef) -> Callable[..., Any]:
    tree = ast.Module([function], [])
    code = compile(tree, f"{module.__name__} without its guard", "exec", __future__.annotations.compiler_flag)
    made: dict[str, Callable[..., Any]] = {}
    exec(code, vars(module), made)
    return made[function.name]


def swap(patch: pytest.MonkeyPatch, guarded: Callable[..., Any], unguarded: Callable[..., Any]) -> None:
    """Put one function's code in the place of another's: whoever refers to it, by name or in a table, calls that."""
    patch.setattr(guarded, "__code__", unguarded.__code__)


class FailingMachine:
    """A folder of jobs on a simulated machine, with a clock of its own, that can be killed or lose its power.

    It is a `Harness`: the steps of the conformance suite work on it.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.machine = SimulatedMachine()
        self._folder = folder
        self._random = random.Random(seed)
        self._open()

    @property
    def store(self) -> FileStore:
        return self._store

    @property
    def disk(self) -> SimulatedDisk:
        return self._disk

    def reopen(self) -> None:
        self._store.close()
        self._open()

    def kill(self) -> None:
        """The process is gone in the middle of what it did; another one opens the folder."""
        self.machine.kill(self._disk)
        self.machine.forget_faults()
        self._open()

    def lose_power(self) -> None:
        """Of what was not synced some is there; the machine starts again."""
        self.machine.kill(self._disk)
        self.machine.lose_power(self._random)
        self._open()

    def _open(self) -> None:
        self._disk = self.machine.process()
        self._store = open_simulated(self.machine, self._folder, self.clock, disk=self._disk, segment_bytes=64 * 1024)

    def close(self) -> None:
        self._store.close()
