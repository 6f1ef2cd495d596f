"""Random histories of the kernel, and what must hold after every step of one.

`World` draws commands (from Hypothesis or from a seeded generator: anything that can choose), runs them and checks the
promises that only a history can break. Run as a program, it prints the digest of one history.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from leasemill.errors import GroupRefused, NotFound
from leasemill.kernel import commands as c
from leasemill.kernel.events import (
    AnyEvent,
    ClockSet,
    ExecutionCommitted,
    ExecutionDone,
    JobEnqueued,
    JobPurged,
    JobsPruned,
    LeaseExpired,
    LeaseGranted,
    ReportRefused,
)
from leasemill.kernel.image import Image, digest, image, jobs_in_order, restore
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply, check, run
from leasemill.kernel.model import (
    ENDED_STATES,
    NEVER,
    SECOND,
    ChainedJob,
    Execution,
    Job,
    JobSpec,
    JobState,
    LossReason,
    OnFailure,
    Policy,
    ReportVerb,
    Rules,
    UniqueKey,
    UniqueUntil,
    Verb,
)
from leasemill.kernel.state import State
from leasemill.kernel.transitions.executions import ended_jobs

T = TypeVar("T")
Reported: TypeAlias = ReportVerb | Literal[Verb.DEATH]

QUEUES = ("alpha", "beta")
OFFSET_QUEUE = "offsets"
LANES = (None, None, "x", "y")
WORKERS = ("w1", "w2", "w3")
IDS = tuple(f"job-{number}" for number in range(12))
POLICIES = (
    None,
    None,
    Policy(max_retries=0),
    Policy(max_retries=1, max_expirations=1, on_failure=OnFailure.BLOCK),
    Policy(lease_ttl_us=5 * SECOND, max_expirations=2),
)
GROUPS = ("g1", "g2", "g3")
LINK = ChainedJob("beta", "link", lane="x", result_name="found")
RULES = (
    None,
    None,
    None,
    Rules(chain=(LINK, LINK)),
    *(Rules(group=group) for group in GROUPS),
    Rules(group="g2", chain=(ChainedJob("alpha", "link"),)),
)
UNIQUES: tuple[UniqueKey | None, ...] = (
    None,
    None,
    UniqueKey("k"),
    UniqueKey("k", UniqueUntil.STARTED),
    UniqueKey("k", keep_us=30 * SECOND),
    UniqueKey("l", UniqueUntil.STARTED, keep_us=20 * SECOND),
    UniqueKey("l", UniqueUntil.STARTED, at_most_us=25 * SECOND),
    UniqueKey("t", UniqueUntil.STARTED, keep_us=15 * SECOND, is_trailing=True),
)
CLOCK_STEPS_S = (-40 * 86_400, -7_200, -100, -20, -1, 1, 20, 100, 3_600, 40 * 86_400)
FINAL_LOSSES = frozenset(
    {LossReason.EXPIRED, LossReason.SUPERSEDED, LossReason.CANCELLED, LossReason.ENDED, LossReason.DIED}
)


class Chooser(Protocol):
    def one_of(self, options: Sequence[T]) -> T: ...

    def number(self, least: int, most: int) -> int: ...


class RandomChooser:
    """Chooses by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one_of(self, options: Sequence[T]) -> T:
        return self._random.choice(options)

    def number(self, least: int, most: int) -> int:
        return self._random.randint(least, most)


class World:
    """A state, a time, every lease ever given, and the state's twins."""

    def __init__(self, chooser: Chooser) -> None:
        self.choose = chooser
        self.state = State()
        self.twin: State | None = None
        self.now = 1_700_000_000 * SECOND
        self.events: list[AnyEvent] = []
        self.leases: list[c.Lease] = []
        self.claims: list[c.Claim] = []
        self.drawn = 0
        self.there: set[str] = set()
        self.commits: Counter[str] = Counter()
        self.succeeded: dict[str, bytes] = {}
        self.attempts: dict[str, int] = {}
        self.lost: set[tuple[str, str]] = set()

    # Steps

    def draw(self, prefix: str) -> str:
        self.drawn += 1
        return f"{prefix}-{self.drawn}"

    def run(self, command: c.Command[Any]) -> Any:
        """Carry out one command on the state and its twin, and check every promise."""
        check(command)
        fence_before, ended_before = self.state.fence, self._ended()
        events, answer = run(self.state, command, self.now)
        if self.twin is not None:
            assert run(self.twin, command, self.now) == (events, answer)
        self.events += events
        self._remember(events)
        assert self.state.fence >= fence_before
        assert self._ended() - ended_before <= ended_jobs(events), "an end that nobody is notified of (O9)"
        self._check()
        return answer

    def _ended(self) -> set[str]:
        return {job.spec.id for job in self.state.jobs.values() if job.state in ENDED_STATES}

    def let_time_pass(self) -> None:
        self.now += self.choose.number(0, 40) * SECOND

    def step_clock_back(self) -> None:
        self.now -= self.choose.number(1, 20) * SECOND

    def set_clock(self) -> None:
        """W17, as a folder does it: what had expired is ended first, and leases keep the time they have left."""
        while self.run(c.Expire(100)):
            pass
        left = {one.fence: one.expires_at - self.now for one in self._live()}
        at = self.now + self.choose.one_of(CLOCK_STEPS_S) * SECOND + self.choose.number(0, 1)
        event = ClockSet(self.now, at)
        for state in (self.state, self.twin):
            if state is not None:
                apply(state, event)
        self.events.append(event)
        self.now = at
        assert {one.fence: one.expires_at - at for one in self._live()} == left
        for job_id in self.succeeded:
            job = self.state.jobs.get(job_id)
            if job is not None:
                self.succeeded[job_id] = frozen_success(job)  # its times are moved with the clock
        assert self.twin is None or digest(self.twin) == digest(self.state)
        self._check()

    def _live(self) -> list[Execution]:
        return self.state.leases.first(len(self.state.leases) + 1, NEVER)

    def enqueue(self) -> None:
        self._unless_refused(c.Enqueue([self._spec() for _ in range(self.choose.number(1, 3))]))

    def _unless_refused(self, command: c.Command[Any]) -> Any:
        """What may concern a group that is not there or takes no members; a refusal changes nothing."""
        before = digest(self.state)
        try:
            return self.run(command)
        except (GroupRefused, NotFound):
            assert digest(self.state) == before
            return None

    def _spec(self) -> JobSpec:
        choose = self.choose
        spec = JobSpec(
            choose.one_of(IDS),
            choose.one_of(QUEUES),
            "kind",
            choose.one_of((b"{}", b"{}", b'{"a":1}')),
            lane=choose.one_of(LANES),
            priority=choose.one_of((0, 0, 3, 9)),
            delay_us=choose.one_of((0, 0, 10 * SECOND)),
            policy=choose.one_of(POLICIES),
            rules=choose.one_of(RULES),
        )
        return with_unique(spec, choose.one_of(UNIQUES))

    def create_group(self) -> None:
        choose = self.choose
        group_id = choose.one_of(GROUPS)
        parent = choose.one_of((None, None, choose.one_of(GROUPS)))
        template = ChainedJob(choose.one_of(QUEUES), "callback", lane=choose.one_of(LANES))
        then, on_end = choose.one_of((None, template)), choose.one_of((None, template))
        self._unless_refused(c.CreateGroup(group_id, then, on_end, parent if parent != group_id else None))

    def seal_group(self) -> None:
        self._unless_refused(c.SealGroup(self.choose.one_of(GROUPS)))

    def cancel_group(self) -> None:
        self._unless_refused(c.CancelGroup(self.choose.one_of(GROUPS), "ada", "why", self.choose.number(1, 3)))

    def claim(self) -> None:
        limit = self.choose.number(1, 4)
        queues = self.choose.one_of((("alpha", "beta"), ("beta", "alpha"), ("alpha",), ("beta", "beta")))
        tokens = [self.draw("token") for _ in range(limit)]
        request_id = self.choose.one_of(("again", None, self.draw("request")))
        self._claim(c.Claim(self.choose.one_of(WORKERS), queues, limit, tokens, request_id))

    def claim_again(self) -> None:
        """An earlier claim is delivered a second time."""
        if self.claims:
            self._claim(self.choose.one_of(self.claims[-5:]))

    def _claim(self, command: c.Claim) -> None:
        self.claims.append(command)
        known = {lease.token for lease in self.leases}
        leases: list[c.Lease] = self.run(command)
        self.leases += [lease for lease in leases if lease.token not in known]
        if not any(token in known for token in command.tokens) and all(
            lease.token in command.tokens for lease in leases
        ):
            self._check_claimed(command, leases)

    def _check_claimed(self, command: c.Claim, leases: list[c.Lease]) -> None:
        """C1, C2, C4 and C6, on what one claim gave."""
        order = list(dict.fromkeys(command.queues))
        jobs = [self.state.jobs[lease.job.id] for lease in leases]
        keys = [(order.index(job.spec.queue), -job.spec.priority, job.available_at, job.seq) for job in jobs]
        assert keys == sorted(keys)
        assert len(leases) <= command.limit
        for job in jobs:
            assert job.available_at <= self.now
            assert not self.state.queues[job.spec.queue].is_paused
            assert job.spec.lane is None or self.state.lanes[job.spec.queue, job.spec.lane].head is job
        if len(leases) < command.limit:
            _, due_in_us = run(self.state, c.DueIn(order), self.now)
            assert due_in_us is None or due_in_us > 0

    def acquire(self) -> None:
        choose = self.choose
        request = c.AcquireRequest(
            OFFSET_QUEUE,
            choose.one_of(("x", "y")),
            choose.number(1, 5),
            choose.one_of(WORKERS),
            self.draw("token"),
            policy=choose.one_of(POLICIES),
        )
        (outcome,) = self.run(c.Acquire([request]))
        if isinstance(outcome, c.Acquired):
            self.leases.append(outcome.lease)

    def report(self, verb: Reported) -> None:
        """One report on a lease somebody has or had."""
        if not self.leases:
            return
        lease = self.choose.one_of(self.leases[-8:])
        job_id, token = lease.job.id, lease.token
        outcome = self._unless_refused(self._report(verb, job_id, token))
        outcome = outcome[0] if isinstance(outcome, list) else outcome
        if isinstance(outcome, c.Lost):
            if outcome.reason in FINAL_LOSSES:
                self.lost.add((job_id, token))
        elif (job_id, token) in self.lost:
            assert getattr(outcome, "is_repeat", False), f"a lost token was good for {verb}: {outcome}"

    def _report(self, verb: Reported, job_id: str, token: str) -> c.Command[Any]:
        choose = self.choose
        match verb:
            case Verb.START:
                return c.Start([c.StartReport(job_id, token, choose.number(0, 5) * SECOND)])
            case Verb.EXTEND:
                return c.Extend([c.LeaseRef(job_id, token)])
            case Verb.COMMIT:
                given = JobSpec(
                    "", choose.one_of(QUEUES), "kind", lane=choose.one_of(LANES), rules=choose.one_of(RULES)
                )
                spec = with_unique(given, choose.one_of(UNIQUES))
                followup = c.Followup(spec.queue, spec.kind, lane=spec.lane, delay_us=spec.delay_us, rules=spec.rules)
                return c.Commit(job_id, token, b"1", [followup] * choose.number(0, 2))
            case Verb.ACK:
                return c.Ack([c.AckReport(job_id, token, b"2")])
            case Verb.NACK:
                how: dict[str, Any] = choose.one_of(
                    (
                        {"jitter": 0.5},
                        {"delay_us": 3 * SECOND},
                        {"is_permanent": True},
                        {"keep_lease": True, "report_id": choose.one_of(("one", "two"))},
                    )
                )
                return c.Nack([c.NackReport(job_id, token, "broke", **how)])
            case Verb.DEATH:
                return c.Death([c.DeathReport(job_id, token, "exit status 137")])
            case Verb.RELEASE:
                return c.Release(
                    [c.ReleaseReport(job_id, token, choose.one_of((None, None, SECOND)), choose.one_of((None, "why")))]
                )

    def expire(self) -> None:
        self.run(c.Expire(self.choose.number(1, 3)))

    def cancel(self) -> None:
        self.run(c.Cancel([self._some_id()], "ada", "why"))

    def redrive(self) -> None:
        where = self._some_filter()
        include_cancelled = where.job_ids is not None and self.choose.number(0, 1) == 1
        self.run(c.Redrive(where, "ada", "why", self.choose.number(1, 5), include_cancelled=include_cancelled))

    def purge(self) -> None:
        self.run(c.Purge(self._some_filter(), "ada", "why", self.choose.number(1, 3)))

    def prune(self) -> None:
        self.run(c.Prune(self.now - 60 * SECOND, self.choose.number(0, 6), 5))

    def pause_or_resume(self) -> None:
        make = self.choose.one_of((c.Pause, c.Resume))
        self.run(make(self.choose.one_of(QUEUES), "ada", "why"))

    def set_policy(self) -> None:
        policy = self.choose.one_of(POLICIES) or Policy()
        self.run(c.SetPolicy(self.choose.one_of((*QUEUES, OFFSET_QUEUE)), policy, "ada", "why"))

    def read(self) -> None:
        """Looking changes nothing, and twins read the same."""
        before = digest(self.state)
        questions: tuple[c.Command[Any], ...] = (
            c.ListJobs(self._some_filter(), self.choose.number(1, 4)),
            c.ListJobs(self._some_filter(), self.choose.number(1, 4), newest_first=True),
            c.ListQueues(10),
            c.GetLane(QUEUES[0], "x"),
            c.GetLane(OFFSET_QUEUE, "x"),
            c.ListLanes(self.choose.one_of(QUEUES), 3, bool(self.choose.number(0, 1))),
            c.GetGroup(self.choose.one_of(GROUPS)),
            c.ListGroups(2, bool(self.choose.number(0, 1))),
            c.ListActions(5),
            c.ListLeases(self.choose.number(1, 3), self.choose.number(0, 5), self.choose.one_of((None, "w1"))),
            c.DueIn(QUEUES),
            c.GetPolicies([*QUEUES, "nowhere"]),
            c.GetTotals(),
            c.GetTime(),
            *(c.GetKey(queue, key) for queue in QUEUES for key in ("k", "l", "t")),
            c.ListJobs(c.JobFilter(unique_key="k"), 3),
        )
        for question in questions:
            events, answer = run(self.state, question, self.now)
            assert events == []
            if self.twin is not None:
                assert run(self.twin, question, self.now) == ([], answer)
        assert digest(self.state) == before

    def take_image(self) -> None:
        """From now on, a state restored from an image of this one runs beside it."""
        self.twin = reloaded(self.state)
        assert digest(self.twin) == digest(self.state)
        assert violations(self.twin) == []

    def _some_id(self) -> str:
        return self.choose.one_of(sorted(self.state.jobs) or IDS)

    def _some_filter(self) -> c.JobFilter:
        return self.choose.one_of(
            (
                c.JobFilter(),
                c.JobFilter(job_ids=(self._some_id(), self._some_id())),
                c.JobFilter(queue=self.choose.one_of(QUEUES)),
                c.JobFilter(states=frozenset({JobState.FAILED})),
                c.JobFilter(group=self.choose.one_of(GROUPS)),
            )
        )

    # What must hold

    def _remember(self, events: list[AnyEvent]) -> None:
        for event in events:
            match event:
                case JobEnqueued():
                    self.there.add(event.job.id)
                case LeaseGranted():
                    assert event.attempt == self.attempts.get(event.job_id, 0) + 1, "an attempt was skipped or repeated"
                    self.attempts[event.job_id] = event.attempt
                case ExecutionCommitted():
                    self.commits[event.job_id] += 1
                    self.there |= {spec.id for spec in event.followups}
                case ExecutionDone():
                    self.commits[event.job_id] = self.commits[event.job_id] or 1
                case JobPurged():
                    self._forget(event.job_id)
                case JobsPruned():
                    for job_id in event.job_ids:
                        self._forget(job_id)
                case _:
                    pass
        self._check_refusals(events)

    def _forget(self, job_id: str) -> None:
        self.there.discard(job_id)
        self.succeeded.pop(job_id, None)
        self.attempts.pop(job_id, None)
        del self.commits[job_id]

    def _check_refusals(self, events: list[AnyEvent]) -> None:
        """L4: with a refusal nothing happens but what time had decided."""
        refused = {event.job_id for event in events if isinstance(event, ReportRefused)}
        for event in events:
            if getattr(event, "job_id", None) in refused:
                by_time = isinstance(event, ExecutionDone) and event.ended_by is Verb.EXPIRE
                assert by_time or isinstance(event, ReportRefused | LeaseExpired), event

    def _check(self) -> None:
        assert violations(self.state) == []
        assert max(self.commits.values(), default=0) <= 1, "a job was committed twice"
        for job_id, frozen in self.succeeded.items():
            job = self.state.jobs.get(job_id)
            assert job is None or frozen_success(job) == frozen, "a success changed"
        for job in self.state.jobs.values():
            if job.state is JobState.SUCCEEDED and job.spec.id not in self.succeeded:
                self.succeeded[job.spec.id] = frozen_success(job)
        for job_id in self.there - self.state.jobs.keys():
            self._check_ended_offset(job_id)

    def _check_ended_offset(self, job_id: str) -> None:
        """N10: of the jobs that are gone without purge or prune, all are finished offsets."""
        queue, lane_key, offset = job_id.rsplit("/", 2)
        assert queue == OFFSET_QUEUE, f"job {job_id} vanished"
        lane = self.state.lanes[queue, lane_key]
        assert int(offset) in (lane.finished or ()), f"offset {job_id} vanished"

    def check_replay(self) -> None:
        """The events alone give the same state."""
        replayed = State()
        for event in self.events:
            apply(replayed, event)
        assert digest(replayed) == digest(self.state)
        assert violations(replayed) == []


def with_unique(spec: JobSpec, unique: UniqueKey | None) -> JobSpec:
    """With the time and the lane that such a key allows."""
    if unique is None:
        return spec
    rules = msgspec.structs.replace(spec.rules or Rules(), unique=unique)
    if unique.at_most_us is not None or unique.is_trailing:
        return msgspec.structs.replace(spec, rules=rules, lane=None, delay_us=0 if unique.is_trailing else 10 * SECOND)
    return msgspec.structs.replace(spec, rules=rules)


def frozen_success(job: Job) -> bytes:
    """All of a job that must not change once it has succeeded."""
    return msgspec.msgpack.encode((job.spec, job.state, job.executions, job.result, job.retries, job.attempt))


def reloaded(state: State) -> State:
    """The state, written down as bytes and read back."""
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(image(state)), type=Image)
    encoded = [msgspec.msgpack.encode(job) for job in jobs_in_order(state)]
    return restore(kept, [msgspec.msgpack.decode(job, type=Job) for job in encoded])


REPORT_WEIGHTS: dict[Reported, int] = {
    Verb.START: 3,
    Verb.EXTEND: 2,
    Verb.COMMIT: 2,
    Verb.ACK: 4,
    Verb.NACK: 3,
    Verb.RELEASE: 2,
    Verb.DEATH: 1,
}

STEPS: tuple[tuple[int, Callable[[World], None]], ...] = (
    (6, World.enqueue),
    (8, World.claim),
    (2, World.claim_again),
    (6, World.acquire),
    (2, World.let_time_pass),
    (1, World.step_clock_back),
    (1, World.set_clock),
    (2, World.expire),
    (1, World.cancel),
    (2, World.create_group),
    (1, World.seal_group),
    (1, World.cancel_group),
    (1, World.redrive),
    (1, World.purge),
    (1, World.prune),
    (1, World.pause_or_resume),
    (1, World.set_policy),
    (1, World.read),
    (1, World.take_image),
    *((weight, partial(World.report, verb=verb)) for verb, weight in REPORT_WEIGHTS.items()),
)


def history(seed: int, steps: int) -> World:
    """The world after so many random steps."""
    chooser = RandomChooser(seed)
    world = World(chooser)
    ways = [step for weight, step in STEPS for _ in range(weight)]
    for _ in range(steps):
        chooser.one_of(ways)(world)
    return world


if __name__ == "__main__":
    sys.stdout.write(digest(history(int(sys.argv[1]), int(sys.argv[2])).state))
