"""The invariants of limits must be able to fail: sound states are broken by hand, each in one way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import Gate, Gates
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import run
from leasemill.kernel.model import SECOND, JobSpec, LimitTerms, LimitUse, Rules
from leasemill.kernel.state import State

NOW = 10**15


def sound_state() -> State:
    """A full limit with keys, a rate that is not due, a limit that is open, and a queue's own."""
    state = State()
    terms = {
        "full": LimitTerms(1),
        "rated": LimitTerms(None, 1, SECOND),
        "open": LimitTerms(5),
        "queue:queue": LimitTerms(5),
    }
    for name, one in terms.items():
        run(state, c.SetLimit(name, one, "ada", "why"), NOW)
    for name in ("full", "rated", "open"):
        for number in range(2):
            rules = Rules(limits=(LimitUse(name), LimitUse("open", "key")))
            run(state, c.Enqueue([JobSpec(f"{name}-{number}", "queue", "kind", rules=rules)]), NOW)
    run(state, c.Claim("worker", ["queue"], 3, ["t1", "t2", "t3"]), NOW)
    run(state, c.DueIn(["queue"]), NOW)
    run(state, c.Enqueue([JobSpec("more", "queue", "kind", rules=Rules(limits=(LimitUse("open"),)))]), NOW)
    assert violations(state) == []
    return state


def gates(state: State) -> Gates:
    found = state.queues["queue"].gates
    assert found is not None
    return found


def gate(state: State, name: str) -> Gate:
    return gates(state).roots[0].children[state.limits[name].tallies[None]]


def _lose_a_holder(state: State) -> None:
    state.limits["full"].tallies[None].holders.clear()


def _invent_a_holder(state: State) -> None:
    state.limits["open"].tallies[None].holders["nobody"] = None


def _miscount_the_held(state: State) -> None:
    state.limits["full"].held += 1


def _miscount_the_waiting(state: State) -> None:
    state.limits["full"].tallies[None].waiting += 1


def _miscount_all_that_wait(state: State) -> None:
    state.limits["full"].waiting += 1


def _drop_a_tally(state: State) -> None:
    del state.limits["full"].tallies[None]


def _keep_an_idle_key(state: State) -> None:
    state.limits["full"].tally("nobody's")


def _keep_an_idle_name(state: State) -> None:
    state.limit("nobody's")


def _forget_a_gate(state: State) -> None:
    gate(state, "open").key = None


def _list_a_gate_late(state: State) -> None:
    gate(state, "open").key = (NOW + 1, 0)


def _shut_a_gate_that_has_a_place(state: State) -> None:
    state.limits["full"].terms = LimitTerms(9)


def _lose_a_shut_gate(state: State) -> None:
    state.limits["full"].tallies[None].shut.clear()


def _list_a_shut_gate(state: State) -> None:
    one = gate(state, "full")
    one.key = (NOW, 1)
    gates(state).roots[0].front.append((NOW, 1, one))


def _lose_the_gates(state: State) -> None:
    state.queues["queue"].gates = None


def _lose_the_queues_limit(state: State) -> None:
    state.queues["queue"].limit = None


@pytest.mark.parametrize(
    ("breaking", "says"),
    [
        (_lose_a_holder, "as holders"),
        (_invent_a_holder, "as holders"),
        (_miscount_the_held, "counts 2 held"),
        (_miscount_the_waiting, "waiting, there are"),
        (_miscount_all_that_wait, "counts 2 waiting"),
        (_drop_a_tally, "not counted"),
        (_keep_an_idle_key, "is idle"),
        (_keep_an_idle_name, "is idle"),
        (_forget_a_gate, "nobody will find"),
        (_list_a_gate_late, "listed too late"),
        (_shut_a_gate_that_has_a_place, "although there is a place"),
        (_lose_a_shut_gate, "will not be reopened"),
        (_list_a_shut_gate, "listed and shut"),
        (_lose_the_gates, "other jobs behind its gates"),
        (_lose_the_queues_limit, "its own limit"),
    ],
)
def test_a_broken_state_is_recognised(breaking: Callable[[State], None], says: str) -> None:
    state = sound_state()
    breaking(state)
    assert any(says in violation for violation in violations(state)), violations(state)
