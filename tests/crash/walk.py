"""Random walks over the verbs: commands that mostly mean something to the state they meet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from leasemill.errors import LeasemillError
from leasemill.kernel import commands as c
from leasemill.kernel.image import digest, image, jobs_in_order, restore
from leasemill.kernel.machine import carry_out, check, run
from leasemill.kernel.model import (
    ENDED_STATES,
    LIVE,
    MILLISECOND,
    SECOND,
    Execution,
    Job,
    JobSpec,
    OnFailure,
    Policy,
    QueueMode,
    Rules,
    UniqueKey,
    UniqueUntil,
)
from leasemill.kernel.state import State
from leasemill.kernel.transitions.unique import is_replaced
from leasemill.kernel.verbs.expire import expire_regardless
from leasemill.store.base import Store
from tests.crash.walk_groups import GroupWalk
from tests.crash.walk_schedules import ScheduleWalk

QUEUES = ("q", "r")
OFFSETS = "offsets"
EITHER = "either"  # used as its first job was, which may be either
LANES = (None, None, "a", "b")
POLICIES = (
    None,
    None,
    None,
    Policy(max_retries=1, lease_ttl_us=2 * SECOND),
    Policy(max_expirations=1, on_failure=OnFailure.BLOCK),
    Policy(max_retries=0, on_failure=OnFailure.BLOCK),
)


UNIQUES = (
    UniqueKey("u"),
    UniqueKey("u", UniqueUntil.STARTED),
    UniqueKey("u", keep_us=4 * SECOND),
    UniqueKey("v", keep_us=8 * SECOND),
    UniqueKey("v", UniqueUntil.STARTED, at_most_us=5 * SECOND),
    UniqueKey("w", UniqueUntil.STARTED, keep_us=3 * SECOND, is_trailing=True),
)


class HandOver(c.Command[Any], frozen=True):
    """C8: an ack with a claim. Its answer is that of both; None for a claim that was refused."""

    ack: c.Ack
    claim: c.Claim


class Walk:
    """Draws one command after the other; the same seed and the same states give the same commands.

    `uniqueness`: how many of the jobs have a unique key. `hands_over`: acks are at times sent with a claim.
    """

    def __init__(
        self,
        source: random.Random,
        *,
        payload_bytes: tuple[int, ...] = (0, 1, 20, 200),
        uniqueness: float = 0.0,
        hands_over: bool = False,
    ) -> None:
        self._random = source
        self._uniqueness = uniqueness
        self._payload_bytes = payload_bytes
        self._count = 0
        self._groups = GroupWalk(source, UNIQUES[:4] if uniqueness else ())
        self._drawers: tuple[tuple[int, Callable[[State], c.Command[Any]]], ...] = (
            (14, self._enqueue),
            (14, self._claim),
            (8, self._start),
            (4, self._extend),
            (7, self._commit),
            (12, self._ack),
            (8, self._nack),
            (3, self._release),
            (2, self._death),
            (3, self._expire),
            (6, self._acquire),
            (3, self._cancel),
            (2, self._redrive),
            (1, self._purge),
            (1, self._prune),
            (2, self._pause_or_resume),
            (1, self._set_policy),
            (4, self._read),
            (8, ScheduleWalk(source).next),
            (3, self._groups.create),
            (2, self._groups.seal),
            (1, self._groups.cancel),
            (1, self._groups.read),
            *([(14, self._hand_over), (6, self._line_up)] if hands_over else []),
        )

    def next(self, state: State) -> c.Command[Any]:
        weights = [weight for weight, _ in self._drawers]
        (drawn,) = self._random.choices(self._drawers, weights)
        return drawn[1](state)

    def next_enqueue(self) -> c.Enqueue:
        """Jobs nobody has heard of, to be appended unread (W9); at times into a queue that may be used with acquire."""
        return c.Enqueue(
            [*self._strays(0.3), *(self._new_job() for _ in range(self._random.randint(1, 3)))], are_new=True
        )

    def _strays(self, chance: float) -> list[JobSpec]:
        """A job for a queue that refuses it, if it is used with acquire (I7)."""
        if not self._chance(chance):
            return []
        lane = self._random.choice((None, "x", "y"))
        return [JobSpec(f"j{self._number()}", self._random.choice((OFFSETS, EITHER)), "k", lane=lane)]

    def _number(self) -> int:
        self._count += 1
        return self._count

    def _chance(self, of: float) -> bool:
        return self._random.random() < of

    def _new_job(self) -> JobSpec:
        pick = self._random.choice
        return JobSpec(
            f"j{self._number()}",
            pick(QUEUES),
            pick(("k", "l")),
            b'"%s"' % (b"x" * pick(self._payload_bytes)),
            lane=pick(LANES),
            priority=pick((0, 0, 0, 9)),
            delay_us=pick((0, 0, 0, 300 * MILLISECOND)),
            policy=pick(POLICIES),
        )

    def _perhaps_unique(self, job: JobSpec) -> JobSpec:
        if not self._uniqueness or not self._chance(self._uniqueness):
            return job
        unique = self._random.choice(UNIQUES)
        if unique.at_most_us is not None or unique.is_trailing:
            job = replace(job, lane=None, delay_us=0 if unique.is_trailing else SECOND)
        return replace(job, rules=replace(job.rules or Rules(), unique=unique))

    def _perhaps_grouped(self, job: JobSpec, state: State) -> JobSpec:
        """In a group or with a chain, beside the rules that it has."""
        rules = self._groups.rules(state)
        if rules is None:
            return job
        return replace(job, rules=replace(job.rules or Rules(), group=rules.group, chain=rules.chain))

    def _enqueue(self, state: State) -> c.Command[Any]:
        jobs = [*self._strays(0.1), *(self._new_job() for _ in range(self._random.randint(1, 4)))]
        jobs = [self._perhaps_unique(self._perhaps_grouped(job, state)) for job in jobs]
        known = [_as_asked(job.spec) for job in jobs_in_order(state) if job.spec.offset is None]
        if known and self._chance(0.3):
            jobs.append(self._random.choice(known))
        if known and self._chance(0.1):
            jobs.append(JobSpec(self._random.choice(known).id, "q", "other"))
        if self._chance(0.1):
            jobs.append(self._random.choice(jobs))  # the same object
        return c.Enqueue(jobs)

    def _claim(self, _state: State) -> c.Command[Any]:
        limit = self._random.choice((1, 1, 2, 5))
        tokens = [f"t{self._number()}" for _ in range(limit)]
        request = f"c{self._number() - self._random.choice((0, 0, 0, 9))}"
        kinds = {"k": Policy(lease_ttl_us=5 * SECOND)} if self._chance(0.3) else {}
        queues = (*QUEUES, EITHER) if self._chance(0.1) else QUEUES
        return c.Claim(self._random.choice(("w1", "w2")), queues, limit, tokens, request, kinds)

    def _token(self, state: State) -> tuple[str, str]:
        """Mostly of a live lease, at times of one that ended, or of none."""
        executions = [execution for job in jobs_in_order(state) for execution in job.executions]
        live = [execution for execution in executions if execution.status in LIVE]
        chosen: Execution | None = None
        if live and self._chance(0.85):
            chosen = self._random.choice(live)
        elif executions:
            chosen = self._random.choice(executions)
        return ("nobody", "nothing") if chosen is None else (chosen.job_id, chosen.token)

    def _start(self, state: State) -> c.Command[Any]:
        return c.Start([c.StartReport(*self._token(state), self._random.choice((0, 1_000)))])

    def _extend(self, state: State) -> c.Command[Any]:
        return c.Extend([c.LeaseRef(*self._token(state)) for _ in range(2)])

    def _commit(self, state: State) -> c.Command[Any]:
        queue = EITHER if self._chance(0.05) else "q"
        specs = [
            self._perhaps_unique(
                JobSpec("", queue, "k", lane=self._random.choice(LANES), rules=self._groups.rules(state))
            )
            for _ in range(self._random.randint(0, 2))
        ]
        followups = [c.Followup(one.queue, "k", lane=one.lane, delay_us=one.delay_us, rules=one.rules) for one in specs]
        return c.Commit(*self._token(state), self._random.choice((None, b"1")), followups)

    def _ack(self, state: State) -> c.Command[Any]:
        reports = [c.AckReport(*self._token(state), self._random.choice((None, b"2"))) for _ in range(2)]
        return c.Ack(reports + self._random.choice(([], [], reports[:1])))  # at times the same object again

    def _hand_over(self, state: State) -> c.Command[Any]:
        """Mostly of heads that are held, so that nothing is left to the ack alone."""
        ack, claim = self._ack(state), self._claim(state)
        assert isinstance(ack, c.Ack)
        assert isinstance(claim, c.Claim)
        live = [
            c.AckReport(job.spec.id, execution.token, self._random.choice((None, b"2")))
            for job in jobs_in_order(state)
            for execution in job.executions
            if execution.status in LIVE and job.spec.offset is None
        ]
        if live and self._chance(0.8):
            ack = c.Ack(self._random.sample(live, min(len(live), self._random.choice((1, 2, 5)))))
        return HandOver(ack, claim)

    def _line_up(self, _state: State) -> c.Command[Any]:
        """Jobs behind the heads of lanes."""
        lane, priority = self._random.choice("ab"), self._random.choice((0, 0, 0, 5))
        jobs = [JobSpec(f"j{self._number()}", "q", "k", lane=lane, priority=priority) for _ in range(3)]
        return c.Enqueue(jobs, are_new=self._chance(0.5))

    def _nack(self, state: State) -> c.Command[Any]:
        way = self._random.choice(("retry", "retry", "delay", "permanent", "keep"))
        return c.Nack(
            [
                c.NackReport(
                    *self._token(state),
                    "it broke",
                    jitter=self._random.random(),
                    delay_us=5_000 if way == "delay" else None,
                    is_permanent=way == "permanent",
                    keep_lease=way == "keep",
                    report_id=f"r{self._number()}" if way == "keep" else "",
                )
            ]
        )

    def _release(self, state: State) -> c.Command[Any]:
        return c.Release(
            [
                c.ReleaseReport(
                    *self._token(state), self._random.choice((None, 1_000)), self._random.choice((None, "why"))
                )
            ]
        )

    def _death(self, state: State) -> c.Command[Any]:
        return c.Death([c.DeathReport(*self._token(state), "exit status 137") for _ in range(2)])

    def _expire(self, _state: State) -> c.Command[Any]:
        return c.Expire(self._random.choice((1, 100)))

    def _acquire(self, state: State) -> c.Command[Any]:
        policy = Policy(lease_ttl_us=SECOND) if self._chance(0.3) else None
        queue = self._random.choice((OFFSETS, OFFSETS, OFFSETS, EITHER))
        claimed = [one.name for one in state.queues.values() if one.mode is QueueMode.CLAIM]
        if claimed and self._chance(0.1):
            queue = self._random.choice(claimed)
        return c.Acquire(
            [
                c.AcquireRequest(
                    queue,
                    self._random.choice(("x", "y")),
                    self._random.randint(0, 12),
                    "w3",
                    f"t{self._number()}",
                    policy=policy,
                )
                for _ in range(self._random.randint(1, 2))
            ]
        )

    def _cancel(self, state: State) -> c.Command[Any]:
        ids = [job.spec.id for job in jobs_in_order(state)]
        return c.Cancel([self._random.choice(ids) if ids else "nobody"], "ada", "because")

    def _redrive(self, _state: State) -> c.Command[Any]:
        return c.Redrive(c.JobFilter(), "ada", "because", self._random.choice((1, 100)))

    def _purge(self, _state: State) -> c.Command[Any]:
        states = frozenset({self._random.choice(tuple(sorted(ENDED_STATES)))})
        return c.Purge(c.JobFilter(states=states), "ada", "because", 3)

    def _prune(self, _state: State) -> c.Command[Any]:
        return c.Prune(0, 3, 2)

    def _pause_or_resume(self, _state: State) -> c.Command[Any]:
        if self._chance(0.4):
            return c.Pause(self._random.choice(QUEUES), "ada", "because")
        return c.Resume(self._random.choice(QUEUES), "ada", "because")

    def _set_policy(self, _state: State) -> c.Command[Any]:
        return c.SetPolicy("r", Policy(max_retries=self._random.randint(0, 3)), "ada", "because")

    def _read(self, state: State) -> c.Command[Any]:
        ids = [job.spec.id for job in jobs_in_order(state)]
        return self._random.choice(
            (
                c.GetJob(self._random.choice(ids) if ids else "nobody"),
                c.ListJobs(c.JobFilter(queue="q"), 10),
                c.ListQueues(10),
                c.GetLane("q", "a"),
                c.ListLanes(OFFSETS, 10),
                c.ListActions(10),
                c.GetTotals(),
                c.DueIn(QUEUES),
                c.GetPolicies([*QUEUES, "nowhere"]),
                *(c.GetKey(queue, key) for queue in QUEUES for key in "uvw" if self._uniqueness),
            )
        )


class Model:
    """The kernel alone: what every store must answer, and the state it must be in."""

    def __init__(self) -> None:
        self.state = State()
        self.latest_at = 0

    def answer(self, command: c.Command[Any], now: int) -> object:
        """The answer, or the error as a value."""
        if isinstance(command, HandOver):
            return self._answer_both(command, now)
        try:
            check(command)
            events, answer = run(self.state, command, now)
        except LeasemillError as error:
            return type(error), str(error)
        if events:
            self.latest_at = now
        return answer

    def _answer_both(self, command: HandOver, now: int) -> object:
        try:
            check(command.claim)
        except LeasemillError as error:
            return type(error), str(error)
        outcomes = self.answer(command.ack, now)
        if isinstance(outcomes, tuple):
            return outcomes
        leases = self.answer(command.claim, now)
        return [outcomes, None if isinstance(leases, tuple) else leases]

    def settle(self, now: int) -> None:
        """W15: what the first look of a process that opened the folder records."""
        if run(self.state, c.Expire(10**6), now)[0]:
            self.latest_at = now

    def digest(self) -> str:
        return digest(self.state)

    def copy(self) -> Model:
        twin = Model()
        twin.state = restore(image(self.state), [_copy_job(job) for job in jobs_in_order(self.state)])
        twin.latest_at = self.latest_at
        return twin

    def boot(self) -> Model:
        """W10: the state after the first look of a new boot."""
        twin = self.copy()
        carry_out(twin.state, expire_regardless(twin.state, 10**6, twin.latest_at), twin.latest_at)
        return twin


def _as_asked(spec: JobSpec) -> JobSpec:
    """As a caller repeats it, who gives no time to a job that the store may put off."""
    return replace(spec, run_at=None) if is_replaced(spec) else spec


def _copy_job(job: Job) -> Job:
    return replace(job, executions=tuple(replace(one) for one in job.executions))


def asked(store: Store, command: c.Command[Any]) -> object:
    """What a store answers, or its refusal as a value."""
    try:
        if isinstance(command, HandOver):
            return [*asyncio.run(store.ack_and_claim(command.ack, command.claim))]
        answer: object = store.run(command)
    except LeasemillError as error:
        return type(error), str(error)
    return answer
