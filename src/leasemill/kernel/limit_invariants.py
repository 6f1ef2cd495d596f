"""The invariants of limits, checked over a whole state. For tests: it reads everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from leasemill.kernel.index.limit_index import Gate, Gates, by_breadth
from leasemill.kernel.model import QUEUE_LIMIT, Job, JobState, LimitUse
from leasemill.kernel.state import State


def violations_of_limits(state: State) -> Iterator[str]:
    yield from _of_tallies(state)
    for name, queue in state.queues.items():
        expected = [job for job in state.jobs.values() if job.spec.queue == name and _waits_at_a_gate(state, job)]
        gates = queue.gates
        found = [] if gates is None else [job for root in gates.roots.values() for job in _jobs_behind(root)]
        if sorted(job.spec.id for job in found) != sorted(job.spec.id for job in expected):
            yield f"queue {name} has other jobs behind its gates than wait under limits"
        if gates is not None:
            if not gates.roots:
                yield f"queue {name} has gates and nobody behind them"
            for priority, root in gates.roots.items():
                yield from _of_gates(gates, root, f"queue {name} priority {priority}")
        own = state.limits.get(QUEUE_LIMIT + name)
        if queue.limit is not own:
            yield f"queue {name} does not know its own limit"


def _of_tallies(state: State) -> Iterator[str]:
    """T1: what is held is the number of live leases."""
    held: dict[LimitUse, set[str]] = {}
    waiting: Counter[LimitUse] = Counter()
    for job in state.jobs.values():
        for use in _limits(job):
            if job.state is JobState.LEASED:
                held.setdefault(use, set()).add(job.spec.id)
            elif _waits_at_a_gate(state, job):
                waiting[use] += 1
    tallies = {
        LimitUse(name, key): tally for name, limit in state.limits.items() for key, tally in limit.tallies.items()
    }
    for use in held.keys() | waiting.keys() | tallies.keys():
        tally = tallies.get(use)
        if tally is None:
            yield f"limit {use} is in use and not counted"
        elif set(tally.holders) != held.get(use, set()):
            yield f"limit {use} counts {sorted(tally.holders)} as holders, there are {sorted(held.get(use, set()))}"
        elif tally.waiting != waiting[use]:
            yield f"limit {use} counts {tally.waiting} waiting, there are {waiting[use]}"
        elif tally.is_idle():
            yield f"limit {use} is idle and still there"
    for name, limit in state.limits.items():
        if limit.held != sum(len(tally.holders) for tally in limit.tallies.values()):
            yield f"limit {name} counts {limit.held} held"
        if limit.waiting != sum(tally.waiting for tally in limit.tallies.values()):
            yield f"limit {name} counts {limit.waiting} waiting"
        if limit.is_idle():
            yield f"limit {name} is idle and still there"


def _limits(job: Job) -> tuple[LimitUse, ...]:
    return () if job.spec.rules is None else job.spec.rules.limits


def _waits_at_a_gate(state: State, job: Job) -> bool:
    spec = job.spec
    if job.state is not JobState.READY or not _limits(job):
        return False
    return spec.lane is None or state.lanes[spec.queue, spec.lane].head is job


def _jobs_behind(gate: Gate) -> list[Job]:
    own = gate.jobs.first(len(gate.jobs) + 1, 2**63)
    return [*own, *(job for child in gate.children.values() for job in _jobs_behind(child))]


def _of_gates(gates: Gates, gate: Gate, where: str) -> Iterator[str]:
    """Yield what is wrong with gates: each job must be behind gates that are listed, or will be listed again."""
    for tally, child in gate.children.items():
        name = f"{where} gate {tally.limit.name}/{tally.key}"
        jobs = _jobs_behind(child)
        if not jobs:
            yield f"{name} has nobody behind it"
            continue
        if any(_path(job) != _path_of(child) for job in child.jobs.first(len(child.jobs) + 1, 2**63)):
            yield f"{name} has a job behind it that is under other limits"
        if child.key is not None:
            if (*child.key, child) not in gate.front:
                yield f"{name} is not where it is listed"
            if child.is_shut:
                yield f"{name} is listed and shut"
            if any(child.key > (job.available_at, job.seq) for job in _open_jobs(child)):
                yield f"{name} is listed too late"
        elif child.is_shut:
            if child not in tally.shut:
                yield f"{name} is shut and will not be reopened"
            if child.until is None and tally.has_place():
                yield f"{name} is shut although there is a place"
            if child.until is not None and not gates.is_timed(child):
                yield f"{name} waits for no instant"
            if child.until is not None and tally.tat and child.until > tally.opens_at():
                yield f"{name} waits for longer than its rate"
        elif _open_jobs(child):
            yield f"{name} has a job that nobody will find"
        yield from _of_gates(gates, child, name)


def _open_jobs(gate: Gate) -> list[Job]:
    """The jobs behind a gate that no gate further in has set aside."""
    own = gate.jobs.first(len(gate.jobs) + 1, 2**63)
    return [*own, *(job for child in gate.children.values() if not child.is_shut for job in _open_jobs(child))]


def _path(job: Job) -> list[LimitUse]:
    return list(by_breadth(_limits(job)))


def _path_of(gate: Gate) -> list[LimitUse]:
    uses: list[LimitUse] = []
    step: Gate | None = gate
    while step is not None and step.tally is not None:
        uses.append(LimitUse(step.tally.limit.name, step.tally.key))
        step = step.parent
    return uses[::-1]
