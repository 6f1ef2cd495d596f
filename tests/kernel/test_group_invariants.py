"""`violations` must notice groups that are wrong: sound ones are broken by hand, each in one way, and it says which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import run
from leasemill.kernel.model import ChainedJob, JobGroup, JobSpec, Rules
from leasemill.kernel.state import State
from leasemill.testing.rules import rule

NOW = 10**15


def sound_state() -> State:
    """A group that runs, in a parent; one that is over; one that is over and of which nothing is left."""
    state = State()
    then = ChainedJob("callbacks", "then")
    for group_id, parent in (("parent", None), ("running", "parent"), ("over", None), ("empty", None)):
        run(state, c.CreateGroup(group_id, then, None, parent), NOW)
    jobs = [
        JobSpec(job_id, "queue", "kind", rules=Rules(group=group))
        for job_id, group in (("a", "running"), ("b", "running"), ("c", "over"))
    ]
    run(state, c.Enqueue(jobs), NOW)
    for group_id in ("parent", "running", "over", "empty"):
        run(state, c.SealGroup(group_id), NOW)
    run(state, c.Claim("worker", ["queue"], 3, ["t1", "t2", "t3"]), NOW)
    run(state, c.Nack([c.NackReport("a", "t1", "broke", is_permanent=True)]), NOW)
    run(state, c.Ack([c.AckReport("c", "t3")]), NOW)
    assert violations(state) == []
    return state


def _of(group_id: str, change: Callable[[JobGroup], None]) -> Callable[[State], None]:
    return lambda state: change(state.groups[group_id])


def _set(group_id: str, **fields: object) -> Callable[[State], None]:
    def change(group: JobGroup) -> None:
        for name, value in fields.items():
            setattr(group, name, value)

    return _of(group_id, change)


def _lose_from_over(state: State) -> None:
    group = state.groups["empty"]
    seq, group.seq = group.seq, 0
    assert group.ended_at is not None
    state.over.remove(group.ended_at, seq)
    group.seq = seq


BREAKS: list[tuple[str, Callable[[State], object], str]] = [
    ("an end is counted twice", _set("running", failed=2), "counts 0 unfinished, there are 1"),
    ("an end is not counted", _set("running", failed=0), "counts 2 unfinished, there are 1"),
    ("an end is counted as another", _set("running", failed=0, dead=1), "counts 0 failed, there are more"),
    ("a part is not counted", _set("parent", total=0), "counts 0 unfinished, there are 1"),
    ("it is over too early", _set("running", is_over=True, ended_at=NOW), "1 unfinished and is_over is True"),
    ("it is not over", _set("over", is_over=False), "0 unfinished and is_over is False"),
    ("its success is forgotten", _set("over", succeeded_at=None), "succeeded at None with 1 of 1"),
    ("it never ended", _set("over", ended_at=None), "over and never ended"),
    ("a member is forgotten", _set("over", remembered=0), "remembers 0 members, there are 1"),
    ("it is gone", lambda state: state.groups.pop("running"), "has members and is not there"),
    ("retention would not find it", _lose_from_over, "groups that retention may forget"),
    ("a consequence is left", lambda state: state.due.append(state.groups["over"]), "left to follow"),
]


@rule("B1", "B2", "B3", "B4")
@pytest.mark.parametrize(("what", "break_it", "sentence"), BREAKS, ids=[what for what, *_ in BREAKS])
def test_a_broken_group_is_distinguished_from_a_sound_one(
    what: str, break_it: Callable[[State], object], sentence: str
) -> None:
    state = sound_state()
    break_it(state)
    found = violations(state)
    assert any(sentence in violation for violation in found), (what, found)
