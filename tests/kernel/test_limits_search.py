"""Every order of steps in a small world under limits: no grant past a limit, no endless wait, no place that leaks.

The search is exhaustive: from the start it takes every step in every state it reaches, with the real kernel. States are
told apart by all that decides what can follow. A deadlock would be a state from which, although leases end and time
passes, some job is never granted; a leak, a place that is still held when all have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.image import image, jobs_in_order
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import run
from leasemill.kernel.model import SECOND, JobSpec, JobState, LimitTerms, LimitUse, Policy, Rules
from leasemill.kernel.state import State
from leasemill.testing.rules import rule

START = 1_000 * SECOND
LEASE = Policy(lease_ttl_us=SECOND, max_expirations=1_000)


class Point(NamedTuple):
    """Where the search is."""

    state: State
    now: int


def job(job_id: str, *uses: str, **fields: Any) -> JobSpec:
    limits = tuple(LimitUse(*use.split("/")) for use in uses)
    return JobSpec(job_id, "queue", "kind", policy=LEASE, rules=Rules(limits=limits), **fields)


def world(terms: dict[str, LimitTerms], jobs: list[JobSpec]) -> Point:
    state = State()
    run(state, c.DeclareLimits([c.DeclaredLimit(name, one) for name, one in terms.items()], "worker"), START)
    run(state, c.Enqueue(jobs), START)
    return Point(state, START)


def steps(point: Point, numbers: tuple[LimitTerms, ...]) -> Iterator[tuple[c.Command[Any] | int, str]]:
    """Everything that may happen next: a claim, an end of a lease in each way, a changed number, time."""
    state = point.state
    for limit in (1, 3):
        tokens = [f"t{state.fence}-{number}" for number in range(limit)]
        yield c.Claim("worker", ["queue"], limit, tokens), f"claim {limit}"
    for held in [job for job in state.jobs.values() if job.state is JobState.LEASED]:
        lease = held.executions[-1].token
        yield c.Ack([c.AckReport(held.spec.id, lease)]), f"ack {held.spec.id}"
        if held.attempt < 2 and point.now == START:  # so that the world is small
            yield c.Release([c.ReleaseReport(held.spec.id, lease)]), f"release {held.spec.id}"
    for terms in numbers:
        if state.limits["a"].terms != terms:
            yield c.SetLimit("a", terms, "ada", "why"), f"set a {terms}"
    if point.now < START + 2 * SECOND:
        yield SECOND, "a second passes"


def taken(point: Point, step: c.Command[Any] | int) -> Point:
    state = deepcopy(point.state)
    if isinstance(step, int):
        return Point(state, point.now + step)
    _, answer = run(state, step, point.now)
    state.actions.clear()
    if isinstance(step, c.Claim):
        check_grants(point.state, state, answer)
    return Point(state, point.now)


def check_grants(before: State, after: State, leases: list[c.Lease]) -> None:
    """T2: at the grant every limit had a place. What a claim ended by expiry has given its place back first."""
    for name, limit in after.limits.items():
        places = limit.terms.places
        for key, tally in limit.tallies.items():
            granted = sum(LimitUse(name, key) in uses(lease.job) for lease in leases)
            assert not granted or places is None or len(tally.holders) <= places, (name, key, tally.holders)


def uses(spec: JobSpec) -> tuple[LimitUse, ...]:
    return () if spec.rules is None else spec.rules.limits


def seen_as(point: Point) -> tuple[Any, ...]:
    """All that decides what can follow; tokens and fences count claims and are left out."""
    jobs = tuple(
        (job.spec.id, job.state, job.attempt, job.executions[-1].expires_at if job.state is JobState.LEASED else None)
        for job in jobs_in_order(point.state)
    )
    kept = image(point.state)
    numbers = tuple((record.declared, record.set) for record in kept.limits)
    return jobs, numbers, kept.rates, point.now


def finishes(point: Point) -> bool:
    """Whether everything ends from here if leases end, time passes and the numbers allow one at a time."""
    state, now = deepcopy(point.state), point.now
    for name in state.limits:
        if state.limits[name].terms.places == 0:
            run(state, c.SetLimit(name, LimitTerms(1), "ada", "why"), now)
    for _ in range(60):
        for held in [job for job in state.jobs.values() if job.state is JobState.LEASED]:
            run(state, c.Ack([c.AckReport(held.spec.id, held.executions[-1].token)]), now)
        if all(job.state is JobState.SUCCEEDED for job in state.jobs.values()):
            return all(not tally.holders for limit in state.limits.values() for tally in limit.tallies.values())
        _, due_in_us = run(state, c.DueIn(["queue"]), now)
        _, leases = run(state, c.Claim("worker", ["queue"], 1, [f"end-{state.fence}"]), now)
        assert leases or due_in_us != 0, "a job is due and not granted"
        if not leases:
            now += max(1, due_in_us or SECOND)
    return False


def search(start: Point, numbers: tuple[LimitTerms, ...], check: Callable[[Point], None]) -> int:
    known = {seen_as(start)}
    to_do = [start]
    while to_do:
        point = to_do.pop()
        check(point)
        for step, _ in steps(point, numbers):
            after = taken(point, step)
            key = seen_as(after)
            if key not in known:
                known.add(key)
                to_do.append(after)
    return len(known)


def check_point(point: Point) -> None:
    assert violations(point.state) == []
    assert finishes(point)


WORLDS = {
    "two limits named in opposite orders": (
        {"a": LimitTerms(1), "b": LimitTerms(1)},
        [job("one", "a", "b"), job("two", "b", "a"), job("three", "a")],
        (LimitTerms(2),),
    ),
    "three limits, each pair shared": (
        {"a": LimitTerms(1), "b": LimitTerms(1), "c": LimitTerms(1)},
        [job("one", "a", "b"), job("two", "b", "c"), job("three", "c", "a")],
        (),
    ),
    "keys under a name that all share": (
        {"a": LimitTerms(1), "k": LimitTerms(1)},
        [job("one", "a", "k/x"), job("two", "a", "k/x"), job("three", "k/x")],
        (),
    ),
    "places and a rate": (
        {"a": LimitTerms(1), "r": LimitTerms(None, 1, 2 * SECOND, 1)},
        [job("one", "a", "r"), job("two", "r"), job("three", "a")],
        (),
    ),
    "a lane whose head waits for a place": (
        {"a": LimitTerms(1), "b": LimitTerms(1)},
        [job("one", "a", lane="lane"), job("two", "b", lane="lane"), job("three", "a", "b")],
        (LimitTerms(0),),
    ),
}


@rule("T1", "T2", "T3", "T6")
@pytest.mark.parametrize("name", list(WORLDS))
def test_several_limits_on_a_job_neither_deadlock_nor_leak(name: str) -> None:
    terms, jobs, numbers = WORLDS[name]
    assert search(world(terms, jobs), numbers, check_point) > 50
