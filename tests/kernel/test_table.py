"""The kernel's table: in every situation, what every command leads to. `table.txt` is the table, to be read.

A line says: commands => events | answer | the job and its latest execution afterwards. `-` is nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.errors import Refused
from leasemill.kernel.commands import Command
from leasemill.kernel.image import digest
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import run
from leasemill.testing.rules import rule
from tests.kernel.situations import BESIDE_JOBS, COMMANDS, READINGS, SITUATIONS, what_happens


def read_table(text: str) -> list[tuple[str, str, str]]:
    """(situation, command, what happens), for every command of every line."""
    cells: list[tuple[str, str, str]] = []
    situation = ""
    for line in text.splitlines():
        if line.startswith("["):
            situation = line.strip("[]")
        elif line:
            names, _, happens = line.partition(" => ")
            cells += [(situation, name, happens) for name in names.split("; ")]
    return cells


TABLE = read_table((Path(__file__).parent / "table.txt").read_text())


def test_the_table_has_every_situation_and_every_command_once() -> None:
    pairs = [(situation, command) for situation, command, _ in TABLE]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {(situation, command) for situation in SITUATIONS for command in COMMANDS}


def test_every_command_of_the_kernel_is_in_the_table_or_is_a_reading() -> None:
    scene = SITUATIONS["leased"]()
    used = {type(make(scene)) for make in (*COMMANDS.values(), *READINGS.values())}
    known = set(Command.__subclasses__()) | {kind for sub in Command.__subclasses__() for kind in sub.__subclasses__()}
    every = {kind for kind in known if kind.__module__.startswith("leasemill.kernel.")}
    assert used == every - BESIDE_JOBS


@rule("X1", "X2", "L2", "L3", "L6", "X4", "X5")
@pytest.mark.parametrize(("situation", "command", "happens"), TABLE, ids=lambda value: value.partition("|")[0])
def test_what_happens_is_what_the_table_says(situation: str, command: str, happens: str) -> None:
    assert what_happens(situation, command) == happens


@rule("L4")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_step_without_events_changes_nothing_and_every_step_leaves_a_sound_state(situation: str) -> None:
    for command in COMMANDS:
        scene = SITUATIONS[situation]()
        before = digest(scene.state)
        try:
            events, _ = run(scene.state, COMMANDS[command](scene), scene.now)
        except Refused:
            events = []
        assert (digest(scene.state) == before) == (events == []), command
        assert violations(scene.state) == [], command


@rule("O6")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_reading_has_no_events_and_changes_nothing(situation: str) -> None:
    for question in READINGS.values():
        scene = SITUATIONS[situation]()
        before = digest(scene.state)
        events, _ = run(scene.state, question(scene), scene.now)
        assert events == []
        assert digest(scene.state) == before
