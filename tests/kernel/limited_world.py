"""Random histories under limits, beside an oracle that knows nothing of gates.

The oracle sorts all jobs for every claim and counts leases one by one; what a claim grants must be what it finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.index.limit_index import charged, opens_at
from leasemill.kernel.machine import run
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, Job, JobSpec, JobState, LimitTerms, LimitUse, Rules, Verb
from leasemill.kernel.state import State
from tests.kernel.world import QUEUES, STEPS, WORKERS, RandomChooser, Reported, World

NAMES = ("a", "b", "k", "r")
LIMITS: tuple[tuple[LimitUse, ...], ...] = (
    (),
    (LimitUse("a"),),
    (LimitUse("b"), LimitUse("a")),
    (LimitUse("k", "x"),),
    (LimitUse("k", "y"), LimitUse("a")),
    (LimitUse("k", "x"), LimitUse("r", "x"), LimitUse("b")),
    (LimitUse("r"),),
    (LimitUse("r", "y"), LimitUse("a")),
)
TERMS = (
    LimitTerms(1),
    LimitTerms(2),
    LimitTerms(0),
    LimitTerms(None, 1, 10 * SECOND, 1),
    LimitTerms(None, 3, 20 * SECOND, 2),
    LimitTerms(2, 2, 5 * SECOND, 3),
)


def limits_of(job: Job) -> tuple[LimitUse, ...]:
    return () if job.spec.rules is None else job.spec.rules.limits


def expected(state: State, command: c.Claim, now: int) -> list[str]:
    """The jobs that a claim grants by the contract's words: C1, C2, C6, T1, T2, T8, T10."""
    held = Counter(use for job in state.jobs.values() if job.state is JobState.LEASED for use in limits_of(job))
    in_hand = Counter(job.spec.queue for job in state.jobs.values() if job.state is JobState.LEASED)
    tats = {
        LimitUse(name, key): tally.tat for name, limit in state.limits.items() for key, tally in limit.tallies.items()
    }
    slots = command.limit if command.slots is None else command.slots
    granted: list[str] = []
    for name in dict.fromkeys(command.queues):
        if name not in state.queues or state.queues[name].is_paused:
            continue
        own = state.limits.get(QUEUE_LIMIT + name)
        for job in sorted(
            (job for job in state.jobs.values() if job.spec.queue == name and _is_due(state, job, now)),
            key=lambda job: (-job.spec.priority, job.available_at, job.seq),
        ):
            uses = limits_of(job)
            if len(granted) == command.limit or ((uses or own is not None) and slots <= 0):
                continue
            if own is not None and own.terms.places is not None and in_hand[name] >= own.terms.places:
                continue
            if not all(_has_room(state.limits[use.name].terms, held[use], tats.get(use, 0), now) for use in uses):
                continue
            granted.append(job.spec.id)
            in_hand[name] += 1
            slots -= bool(uses) or own is not None
            for use in uses:
                held[use] += 1
                terms = state.limits[use.name].terms
                if terms.rate is not None:
                    tats[use] = charged(terms, tats.get(use, 0), now)
    return granted


def _is_due(state: State, job: Job, now: int) -> bool:
    if job.state is not JobState.READY or job.available_at > now or job.spec.offset is not None:
        return False
    return job.spec.lane is None or state.lanes[job.spec.queue, job.spec.lane].head is job


def _has_room(terms: LimitTerms, held: int, tat: int, now: int) -> bool:
    return (terms.places is None or held < terms.places) and (not tat or opens_at(terms, tat) <= now)


class LimitedWorld(World):
    """A world whose jobs are under limits, and whose limits change."""

    def _spec(self) -> JobSpec:
        spec = super()._spec()
        limits = self.choose.one_of(LIMITS)
        return replace(spec, rules=replace(spec.rules or Rules(), limits=limits)) if limits else spec

    def _report(self, verb: Reported, job_id: str, token: str) -> c.Command[Any]:
        if verb is not Verb.COMMIT:
            return super()._report(verb, job_id, token)
        limits = self.choose.one_of(LIMITS)
        followup = c.Followup(self.choose.one_of(QUEUES), "kind", rules=Rules(limits=limits) if limits else None)
        return c.Commit(job_id, token, b"1", [followup] * self.choose.number(0, 2))

    def claim_beside_the_oracle(self) -> None:
        choose = self.choose
        limit = choose.number(1, 5)
        queues = choose.one_of((("alpha", "beta"), ("beta", "alpha"), ("alpha",)))
        tokens = [self.draw("token") for _ in range(limit)]
        slots = choose.one_of((None, None, 0, 1, 2))
        command = c.Claim(choose.one_of(WORKERS), queues, limit, tokens, self.draw("request"), slots=slots)
        looked = deepcopy(self.state)
        run(looked, c.Expire(100), self.now)  # L7: what has expired is recorded first
        wanted = expected(looked, command, self.now)
        leases: list[c.Lease] = self.run(command)
        self.leases += leases
        assert [lease.job.id for lease in leases] == wanted
        if len(leases) < limit and slots is None:
            due_in_us = self.run(c.DueIn(queues))
            assert due_in_us is None or due_in_us > 0

    def set_limit(self) -> None:
        name = self.choose.one_of((*NAMES, *NAMES, f"{QUEUE_LIMIT}alpha"))
        terms = self.choose.one_of(TERMS)
        if name.startswith(QUEUE_LIMIT):
            terms = LimitTerms(self.choose.number(0, 4))
        self.run(c.SetLimit(name, terms, "ada", "why"))

    def clear_limit(self) -> None:
        self.run(c.ClearLimit(self.choose.one_of((*NAMES, f"{QUEUE_LIMIT}alpha")), "ada", "why"))

    def declare_limits(self) -> None:
        declared = c.DeclaredLimit(self.choose.one_of(NAMES), self.choose.one_of(TERMS))
        self.run(c.DeclareLimits([declared], "worker"))

    def throttle(self) -> None:
        if self.leases:
            lease = self.choose.one_of(self.leases[-8:])
            report = c.ReleaseReport(
                lease.job.id, lease.token, None, "429", self.choose.one_of(NAMES), self.choose.number(0, 30) * SECOND
            )
            self.run(c.Release([report]))

    def read_limits(self) -> None:
        views = self.run(c.ListLimits(100))
        assert [view.name for view in views] == sorted(self.state.limits)
        for view in views:
            self.run(c.GetLimit(view.name))

    def enqueue_under_queues_alone(self) -> None:
        self._unless_refused(c.Enqueue([replace(self._spec(), queue=self.choose.one_of(QUEUES))]))


LIMITED_STEPS: tuple[tuple[int, Callable[[LimitedWorld], None]], ...] = (
    *STEPS,
    (8, LimitedWorld.enqueue_under_queues_alone),
    (14, LimitedWorld.claim_beside_the_oracle),
    (3, LimitedWorld.set_limit),
    (1, LimitedWorld.clear_limit),
    (1, LimitedWorld.declare_limits),
    (1, LimitedWorld.throttle),
    (1, LimitedWorld.read_limits),
)


def limited_history(seed: int, steps: int) -> LimitedWorld:
    chooser = RandomChooser(seed)
    world = LimitedWorld(chooser)
    ways = [step for weight, step in LIMITED_STEPS for _ in range(weight)]
    for _ in range(steps):
        chooser.one_of(ways)(world)
    return world
