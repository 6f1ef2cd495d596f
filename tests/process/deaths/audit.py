"""What must hold when workers have been killed and stopped: of the store's records, of the trails, of both. Pure.

Each check yields what is wrong, in sentences; nothing: it holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Final, NamedTuple

from msgspec import json

from leasemill.kernel.model import SECOND, AbortReason, Execution, Job, JobState, Verb
from leasemill.kernel.verbs.commit import followup_id
from tests.process.deaths.app import Effect, Mark

CLOCKS_S: Final = 0.05
"""How far the store's clock and the lab's may be apart: those of one machine, read one after the other."""
REPORTS: Final = frozenset({Verb.ACK, Verb.NACK, Verb.RELEASE})
"""By these a worker ends its lease itself."""


class Kill(NamedTuple):
    """A process was killed; `at` is of the monotonic clock, `wall` of the store's in microseconds, just before it."""

    worker: str
    pid: int
    at: float
    wall: int
    instance: str = ""
    """What the tokens of its leases begin with; empty: it was starting, and had published nothing."""
    is_alone: bool = True
    """Others, who could notice, were alive."""


class Stop(NamedTuple):
    """A process stood still, and went on or was killed."""

    worker: str
    pid: int
    at: float
    until: float


class Held(NamedTuple):
    """A lease whose worker was killed."""

    execution: Execution
    kill: Kill
    recorded_s: float
    """From the kill to the record of the lease's end."""
    started_s: float | None
    """From the kill to the start of the next run; None: there was none to come, or who claimed it was killed before."""
    is_limited: bool


@dataclass(frozen=True)
class Evidence:
    """What the store, the processes and the lab have recorded."""

    expected: Sequence[str]
    jobs: Mapping[str, Job]
    marks: Sequence[Mark]
    kills: Sequence[Kill] = ()
    stops: Sequence[Stop] = ()
    effects: Sequence[tuple[str, int, int]] | None = None
    """On PostgreSQL, the rows of the user's table: job, attempt, fence."""
    runs: dict[tuple[str, int], list[Mark]] = field(init=False)
    """The marks of each run, by job and attempt."""

    def __post_init__(self) -> None:
        runs: defaultdict[tuple[str, int], list[Mark]] = defaultdict(list)
        for mark in self.marks:
            runs[mark.job, mark.attempt].append(mark)
        object.__setattr__(self, "runs", runs)

    def kill_of(self, execution: Execution) -> Kill | None:
        """The kill that its worker's process died of, if the lease was not ended before it."""
        for kill in self.kills:
            if _is_of(execution, kill):
                return kill if (execution.finished_at or 2**63) >= kill.wall - CLOCKS_S * SECOND else None
        return None


def _is_of(execution: Execution, kill: Kill) -> bool:
    """A claim that was on its way to a server may be granted to a process that is dead already. Children of a
    supervisor inherit the name of the one before: where the instance is not known, the first kill since counts."""
    if kill.worker != execution.worker:
        return False
    if kill.instance:
        return execution.token.startswith(kill.instance)
    return kill.wall >= execution.leased_at - CLOCKS_S * SECOND


def wrong(evidence: Evidence) -> Iterator[str]:
    yield from ids(evidence)
    yield from ends(evidence)
    yield from effects(evidence)
    yield from deaths(evidence)
    yield from overlaps(evidence)


def ids(evidence: Evidence) -> Iterator[str]:
    """No job and no receipt is lost, and none is there that nobody asked for."""
    wanted = {*evidence.expected, *(followup_id(job_id, 0) for job_id in evidence.expected)}
    yield from (f"{job_id} is lost" for job_id in sorted(wanted - evidence.jobs.keys()))
    yield from (f"{job_id} is one too many" for job_id in sorted(evidence.jobs.keys() - wanted))


def ends(evidence: Evidence) -> Iterator[str]:
    """Every job has succeeded without a failure, by one commit; fences rise; every run has its lease on record."""
    for job_id, job in evidence.jobs.items():
        if job.state is not JobState.SUCCEEDED or job.retries:
            errors = [one.error for one in job.executions if one.error]
            yield f"{job_id} is {job.state} after {job.retries} retries: {errors[-1][-300:] if errors else 'no error'}"
        committed = sum(one.committed_at is not None for one in job.executions)
        if committed != 1:
            yield f"{job_id} is committed {committed} times by the store's records"
        fences = [one.fence for one in job.executions]
        if fences != sorted(set(fences)):
            yield f"{job_id} has fences that do not rise: {fences}"
    known = {
        (one.job_id, one.attempt, one.fence, one.worker) for job in evidence.jobs.values() for one in job.executions
    }
    for mark in evidence.marks:
        if mark.what == "began" and (mark.job, mark.attempt, mark.fence, mark.worker) not in known:
            yield f"{mark.job} ran as attempt {mark.attempt} in {mark.worker}, and no lease on record is that run's"


def effects(evidence: Evidence) -> Iterator[str]:
    """What the handlers know, what the store has on record and what is in the user's table are the same one effect."""
    known = Counter((mark.job, mark.attempt, mark.fence) for mark in evidence.marks if mark.what == "committed")
    times = Counter(job_id for job_id, _, _ in known)
    rows = None if evidence.effects is None else Counter(job_id for job_id, _, _ in evidence.effects)
    for job_id in evidence.expected:
        job = evidence.jobs.get(job_id)
        one = next((one for one in job.executions if one.committed_at is not None), None) if job is not None else None
        if job is None or one is None:
            continue
        run = job_id, one.attempt, one.fence
        if job.result != json.encode(Effect(one.attempt, one.fence, one.worker)):
            yield f"{job_id} has the result of another run than attempt {one.attempt}: {job.result!r}"
        if times[job_id] > 1:
            yield f"{job_id} took effect {times[job_id]} times: its handlers know of each"
        elif times[job_id] and not known[run]:
            yield f"{job_id} took effect in another run than the store has on record, attempt {one.attempt}"
        elif not times[job_id] and not _was_killed(evidence, evidence.runs[job_id, one.attempt]):
            yield f"{job_id} took effect in attempt {one.attempt}, whose handler was not killed and does not know"
        if rows is not None and rows[job_id] != 1:
            yield f"{job_id} is in the user's table {rows[job_id]} times"
    for row in set(evidence.effects or ()):
        committed = next((one for one in evidence.jobs[row[0]].executions if one.committed_at is not None), None)
        if committed is None or (committed.attempt, committed.fence) != row[1:]:
            yield f"the user's table has attempt {row[1]} of {row[0]}, and the store another"


def _killed_at(evidence: Evidence, mark: Mark) -> float | None:
    """When the process that left this was killed. Ids are used again: the first kill since, of that name and id."""
    process = mark.worker, mark.pid
    return min(
        (kill.at for kill in evidence.kills if (kill.worker, kill.pid) == process and kill.at >= mark.at), default=None
    )


def _was_killed(evidence: Evidence, marks: Sequence[Mark]) -> bool:
    return any(_killed_at(evidence, mark) is not None for mark in marks)


def deaths(evidence: Evidence) -> Iterator[str]:
    """Nobody was declared dead who lived, and no lease was left to expire but that of a worker that stood still."""
    for job in evidence.jobs.values():
        for one in job.executions:
            ended = f"attempt {one.attempt} of {one.job_id} ended as {one.reason}"
            if one.reason is AbortReason.DIED and evidence.kill_of(one) is None:
                yield f"{ended}, and its worker {one.worker} was alive"
            if one.reason is AbortReason.EXPIRED and not _stood_still(evidence, one):
                yield f"{ended}, and its worker {one.worker} was {_fate(evidence, one)}"


def _fate(evidence: Evidence, execution: Execution) -> str:
    return "alive" if evidence.kill_of(execution) is None else "killed, which nobody noticed"


def _stood_still(evidence: Evidence, execution: Execution) -> bool:
    lease_s = execution.terms.lease_ttl_us / SECOND
    return any(stop.worker == execution.worker and stop.until - stop.at > lease_s / 2 for stop in evidence.stops)


def overlaps(evidence: Evidence) -> Iterator[str]:
    """A run begins when the one before it is over, but for one whose worker stood still for longer than its lease."""
    for (job_id, attempt), marks in evidence.runs.items():
        ended = next((mark.at for mark in marks if mark.what == "ended"), _killed_at(evidence, marks[0]))
        following = evidence.runs.get((job_id, attempt + 1))
        if ended is None:
            yield f"attempt {attempt} of {job_id} began in {marks[0].worker}, which was not killed, and never ended"
        elif following is not None and following[0].at < ended and not _is_expired(evidence, job_id, attempt):
            yield f"attempt {attempt + 1} of {job_id} began {ended - following[0].at:.3f} s before the one before ended"


def _is_expired(evidence: Evidence, job_id: str, attempt: int) -> bool:
    return any(one.attempt == attempt and one.reason is AbortReason.EXPIRED for one in evidence.jobs[job_id].executions)


# Figures --------------------------------------------------------------------------------------------------------


def held(evidence: Evidence) -> list[Held]:
    """The leases of killed workers."""
    found: list[Held] = []
    for job in evidence.jobs.values():
        for one in job.executions:
            kill = evidence.kill_of(one)
            if kill is None or one.finished_at is None or one.ended_by in REPORTS:
                continue
            following = evidence.runs.get((one.job_id, one.attempt + 1))
            started_s = None if following is None else following[0].at - kill.at
            found.append(Held(one, kill, (one.finished_at - kill.wall) / SECOND, started_s, job.spec.kind == "limited"))
    return found


def slowest(evidence: Evidence, found: Sequence[Held], over_s: float, count: int = 20) -> list[str]:
    """What happened to the leases of killed workers that took longer than this, in seconds from the kill on."""
    late = sorted((one for one in found if one.kill.is_alone), key=_took_s, reverse=True)
    return [_course(evidence, one) for one in late[:count] if _took_s(one) > over_s]


def _took_s(one: Held) -> float:
    """Until its next run started; where there was none, until its end was on record."""
    return one.recorded_s if one.started_s is None else one.started_s


def _course(evidence: Evidence, one: Held) -> str:
    def at(time_us: int | None) -> str:
        return "never" if time_us is None else f"{(time_us - one.kill.wall) / SECOND:+.2f}"

    execution = one.execution
    following = [it for it in evidence.jobs[execution.job_id].executions if it.attempt == execution.attempt + 1]
    stops = [
        f"{stop.worker} {stop.at - one.kill.at:+.2f} to {stop.until - one.kill.at:+.2f}"
        for stop in evidence.stops
        if stop.at <= one.kill.at + _took_s(one) and stop.until >= one.kill.at
    ]
    claimed = "".join(f", leased to {it.worker} {at(it.leased_at)}, started {at(it.started_at)}" for it in following)
    return (
        f"{execution.job_id} of {execution.worker}: leased {at(execution.leased_at)}, "
        f"ended as {execution.reason} {at(execution.finished_at)}{claimed}; stood still: {', '.join(stops) or 'nobody'}"
    )


class Spread(NamedTuple):
    number: int
    p50: float
    p99: float
    most: float

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} s, p99 {self.p99:.2f} s, max {self.most:.2f} s ({self.number})"


def spread(values: Sequence[float]) -> Spread:
    """Of nothing: 0 of each."""
    if len(values) < 2:
        one = values[0] if values else 0.0
        return Spread(len(values), one, one, one)
    cuts = quantiles(values, n=100, method="inclusive")
    return Spread(len(values), cuts[49], cuts[98], max(values))
