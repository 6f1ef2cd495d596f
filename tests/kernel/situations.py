"""Every situation a job can be in, and every command that can be given: the rows and columns of the kernel's table.

Each situation is reached by commands alone, from an empty state; the job is always called `job`, or is offset 1 of
lane `lane`, and at the end it is `NOW`. Run as a program, this prints the table as it is now: when a rule changes,
write it to `table.txt` and read the difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from leasemill.errors import Refused
from leasemill.kernel import commands as c
from leasemill.kernel.events import AnyEvent
from leasemill.kernel.machine import run
from leasemill.kernel.model import SECOND, ChainedJob, Job, JobSpec, LimitTerms, LimitUse, OnFailure, Policy, Rules
from leasemill.kernel.state import State
from leasemill.kernel.verbs.acquire import offset_id

NOW: Final = 1_700_000_000 * SECOND
QUEUE: Final = "queue"
OFFSETS: Final = "offsets"
LANE: Final = "lane"
OFFSET_ID: Final = offset_id(OFFSETS, LANE, 1)
BLOCK: Final = Policy(max_retries=0, max_expirations=1, on_failure=OnFailure.BLOCK)
CHAINED: Final = Rules(chain=(ChainedJob(QUEUE, "next"),))
TIMED: Final = Policy(lease_ttl_us=30 * SECOND)
LIMIT: Final = "limit"
UNDER: Final = Rules(limits=(LimitUse(LIMIT),))


@dataclass
class Scene:
    """A state on its way into a situation."""

    state: State = field(default_factory=State)
    now: int = NOW - 100 * SECOND
    job_id: str = "job"
    token: str = "nobody's"
    drawn: int = 0

    def run(self, command: c.Command[Any]) -> Any:
        return run(self.state, command, self.now)[1]

    def enqueue(self, job_id: str = "job", **fields: Any) -> Scene:
        self.run(c.Enqueue([JobSpec(job_id, QUEUE, "kind", **fields)]))
        return self

    def group(self) -> Scene:
        """A sealed group whose only member is the job."""
        self.run(c.CreateGroup("group", ChainedJob(QUEUE, "then"), ChainedJob(QUEUE, "end")))
        self.enqueue(rules=Rules(group="group"))
        self.run(c.SealGroup("group"))
        return self

    def claim(self) -> Scene:
        self.drawn += 1
        (lease,) = self.run(c.Claim("worker", [QUEUE], 1, [f"token-{self.drawn}"]))
        self.token = lease.token
        return self

    def acquire(self, offset: int = 1, policy: Policy | None = None) -> Scene:
        self.drawn += 1
        token = f"token-{self.drawn}"
        (outcome,) = self.run(c.Acquire([c.AcquireRequest(OFFSETS, LANE, offset, "worker", token, policy=policy)]))
        self.job_id = OFFSET_ID
        if isinstance(outcome, c.Acquired) and offset == 1:
            self.token = token
        return self

    def start(self) -> Scene:
        self.run(c.Start([c.StartReport(self.job_id, self.token)]))
        return self

    def commit(self) -> Scene:
        self.run(c.Commit(self.job_id, self.token, b"1"))
        return self

    def ack(self) -> Scene:
        self.run(c.Ack([c.AckReport(self.job_id, self.token)]))
        return self

    def nack(self, **fields: Any) -> Scene:
        self.run(c.Nack([c.NackReport(self.job_id, self.token, "broke", **fields)]))
        return self

    def release(self) -> Scene:
        self.run(c.Release([c.ReleaseReport(self.job_id, self.token)]))
        return self

    def cancel(self) -> Scene:
        self.run(c.Cancel([self.job_id], "ada", "why"))
        return self

    def redrive(self) -> Scene:
        self.run(c.Redrive(c.JobFilter(job_ids=(self.job_id,)), "ada", "why", 10))
        return self

    def pause(self) -> Scene:
        self.run(c.Pause(QUEUE, "ada", "why"))
        return self

    def limit(self, name: str = LIMIT, **terms: int) -> Scene:
        self.run(c.SetLimit(name, LimitTerms(**terms), "ada", "why"))
        return self

    def after(self, seconds: int) -> Scene:
        self.now += seconds * SECOND
        return self

    def expire(self) -> Scene:
        self.run(c.Expire(10))
        return self

    def until_now(self) -> Scene:
        self.now = NOW
        return self

    @property
    def job(self) -> Job | None:
        return self.state.jobs.get(self.job_id)


def _now() -> Scene:
    return Scene(now=NOW)


def _lately() -> Scene:
    """Long enough ago for an extension to be one."""
    return Scene(now=NOW - 10 * SECOND)


SITUATIONS: Final[dict[str, Callable[[], Scene]]] = {
    "unknown": _now,
    "ready": lambda: _now().enqueue(),
    "ready, not due": lambda: _now().enqueue(delay_us=SECOND),
    "ready, queue paused": lambda: _now().enqueue().pause(),
    "ready, in back-off": lambda: _now().enqueue().claim().nack(jitter=0.5),
    "ready, released": lambda: _now().enqueue().claim().release(),
    "ready, expired": lambda: Scene().enqueue().claim().after(30).expire().until_now(),
    "ready, redriven": lambda: _now().enqueue().claim().nack(is_permanent=True).redrive(),
    "ready, head of a lane": lambda: _now().enqueue(lane=LANE).enqueue("behind", lane=LANE),
    "ready, behind a ready head": lambda: _now().enqueue("head", lane=LANE).enqueue(lane=LANE),
    "ready, behind a leased head": lambda: _without_token(_now().enqueue("head", lane=LANE).claim().enqueue(lane=LANE)),
    "ready, waits for a place": lambda: _without_token(
        _now().limit(places=1).enqueue("holder", rules=UNDER).claim().enqueue(rules=UNDER)
    ),
    "ready, waits for a rate": lambda: _without_token(
        _now().limit(rate=1, per_us=SECOND).enqueue("charged", rules=UNDER).claim().enqueue(rules=UNDER)
    ),
    "ready, the queue is full": lambda: _without_token(
        _now().limit(f"queue:{QUEUE}", places=1).enqueue("holder").claim().enqueue()
    ),
    "leased, with the only place": lambda: (
        _now().limit(places=1).enqueue(rules=UNDER).claim().enqueue("next", rules=UNDER)
    ),
    "leased": lambda: _lately().enqueue().claim().until_now(),
    "leased, no retry left": lambda: _now().enqueue(policy=Policy(max_retries=0)).claim(),
    "leased, head of a lane": lambda: _now().enqueue(lane=LANE).enqueue("behind", lane=LANE).claim(),
    "leased, head that blocks": lambda: _now().enqueue(lane=LANE, policy=BLOCK).enqueue("behind", lane=LANE).claim(),
    "leased, time is up": lambda: Scene().enqueue().claim().until_now(),
    "started": lambda: _lately().enqueue().claim().start().until_now(),
    "started, time is up": lambda: Scene().enqueue().claim().start().until_now(),
    "started, last time is up": lambda: Scene().enqueue(policy=Policy(max_expirations=1)).claim().start().until_now(),
    "failed, lease kept": lambda: _now().enqueue().claim().nack(keep_lease=True, report_id="report"),
    "committed": lambda: _lately().enqueue().claim().commit().until_now(),
    "committed, time is up": lambda: Scene().enqueue().claim().commit().until_now(),
    "succeeded by ack": lambda: _now().enqueue().claim().ack(),
    "succeeded by commit and ack": lambda: _now().enqueue().claim().commit().ack(),
    "succeeded by commit and expiry": lambda: Scene().enqueue().claim().commit().after(30).expire().until_now(),
    "failed": lambda: _now().enqueue().claim().nack(is_permanent=True),
    "failed, blocks its lane": lambda: (
        _now().enqueue(lane=LANE, policy=BLOCK).enqueue("behind", lane=LANE).claim().nack()
    ),
    "cancelled while ready": lambda: _now().enqueue().cancel(),
    "cancelled while leased": lambda: _now().enqueue().claim().cancel(),
    "dead, quarantined": lambda: (
        Scene().enqueue(policy=Policy(max_expirations=1)).claim().start().after(30).expire().until_now()
    ),
    "dead, blocks its lane": lambda: (
        Scene().enqueue(lane=LANE, policy=BLOCK).claim().start().after(30).expire().until_now()
    ),
    "offset ready": lambda: _now().acquire().release(),
    "offset in the backlog": lambda: _now().acquire(2).acquire(1),
    "offset in flight": lambda: _now().acquire(),
    "offset in flight, time is up": lambda: Scene().acquire(policy=TIMED).until_now(),
    "offset finished": lambda: _now().acquire().ack(),
    "offset failed": lambda: _now().acquire().nack(is_permanent=True),
    "offset failed, blocks its lane": lambda: _now().acquire(policy=BLOCK).nack(),
    "leased, in a chain": lambda: _lately().enqueue(rules=CHAINED).claim().until_now(),
    "leased, last of a group": lambda: _lately().group().claim().until_now(),
    "committed, last of a group": lambda: Scene().group().claim().commit().until_now(),
    "failed, last of a group": lambda: _now().group().claim().nack(is_permanent=True),
}


def _without_token(scene: Scene) -> Scene:
    scene.token = "nobody's"
    return scene


def _spec(scene: Scene) -> JobSpec:
    return JobSpec("job", QUEUE, "kind") if scene.job is None else scene.job.spec


def _other_spec(scene: Scene) -> JobSpec:
    return JobSpec(scene.job_id, "elsewhere", "kind", b"[1]")


COMMANDS: Final[dict[str, Callable[[Scene], c.Command[Any]]]] = {
    "enqueue": lambda scene: c.Enqueue([_spec(scene)]),
    "enqueue other": lambda scene: c.Enqueue([_other_spec(scene)]),
    "claim": lambda _: c.Claim("worker-2", [QUEUE], 1, ["new token"]),
    "start": lambda scene: c.Start([c.StartReport(scene.job_id, scene.token)]),
    "extend": lambda scene: c.Extend([c.LeaseRef(scene.job_id, scene.token)]),
    "commit": lambda scene: c.Commit(scene.job_id, scene.token, b"1", [c.Followup(QUEUE, "kind")]),
    "ack": lambda scene: c.Ack([c.AckReport(scene.job_id, scene.token)]),
    "nack": lambda scene: c.Nack([c.NackReport(scene.job_id, scene.token, "broke", jitter=0.5)]),
    "nack for good": lambda scene: c.Nack([c.NackReport(scene.job_id, scene.token, "broke", is_permanent=True)]),
    "nack and keep": lambda scene: c.Nack(
        [c.NackReport(scene.job_id, scene.token, "broke", keep_lease=True, report_id="report")]
    ),
    "release": lambda scene: c.Release([c.ReleaseReport(scene.job_id, scene.token)]),
    "death": lambda scene: c.Death([c.DeathReport(scene.job_id, scene.token, "exit status 137")]),
    "forged ack": lambda scene: c.Ack([c.AckReport(scene.job_id, "forged")]),
    "expire": lambda _: c.Expire(10),
    "acquire": lambda _: c.Acquire([c.AcquireRequest(OFFSETS, LANE, 1, "worker-2", "new token")]),
    "acquire another": lambda _: c.Acquire([c.AcquireRequest(OFFSETS, LANE, 3, "worker-2", "new token")]),
    "cancel": lambda scene: c.Cancel([scene.job_id], "ada", "why"),
    "redrive": lambda scene: c.Redrive(c.JobFilter(job_ids=(scene.job_id,)), "ada", "why", 10),
    "redrive cancelled": lambda scene: c.Redrive(
        c.JobFilter(job_ids=(scene.job_id,)), "ada", "why", 10, include_cancelled=True
    ),
    "purge": lambda scene: c.Purge(c.JobFilter(job_ids=(scene.job_id,)), "ada", "why", 10),
    "prune": lambda _: c.Prune(NOW + 1, 0, 10),
    "pause": lambda _: c.Pause(QUEUE, "ada", "why"),
    "resume": lambda _: c.Resume(QUEUE, "ada", "why"),
    "set_policy": lambda _: c.SetPolicy(QUEUE, Policy(max_retries=1), "ada", "why"),
    "set_limit": lambda _: c.SetLimit(LIMIT, LimitTerms(5), "ada", "why"),
    "clear_limit": lambda _: c.ClearLimit(LIMIT, "ada", "why"),
    "declare_limits": lambda _: c.DeclareLimits([c.DeclaredLimit(LIMIT, LimitTerms(7))], "worker"),
    "release, throttled": lambda scene: c.Release(
        [c.ReleaseReport(scene.job_id, scene.token, None, "429", LIMIT, SECOND)]
    ),
}

BESIDE_JOBS: Final[frozenset[type]] = frozenset(
    {
        *(c.CreateGroup, c.SealGroup, c.CancelGroup, c.SetSchedule, c.RemoveSchedule, c.PauseSchedule),
        *(c.ResumeSchedule, c.FireTicks, c.FireNow, c.Backfill, c.OrderWorker),
    }
)
"""Commands that are not about one job; the conformance suite has what they lead to."""

READINGS: Final[dict[str, Callable[[Scene], c.Command[Any]]]] = {
    "job": lambda scene: c.GetJob(scene.job_id),
    "key": lambda _: c.GetKey("queue", "key"),
    "jobs": lambda _: c.ListJobs(c.JobFilter(), 10),
    "queues": lambda _: c.ListQueues(10),
    "lane": lambda _: c.GetLane(QUEUE, LANE),
    "lanes": lambda _: c.ListLanes(QUEUE, 10),
    "group": lambda _: c.GetGroup("group"),
    "groups": lambda _: c.ListGroups(10),
    "leases": lambda _: c.ListLeases(10),
    "actions": lambda _: c.ListActions(10),
    "order": lambda _: c.GetOrder("instance"),
    "limits": lambda _: c.ListLimits(10),
    "limit": lambda _: c.GetLimit(LIMIT),
    "due_in": lambda _: c.DueIn([QUEUE]),
    "policies": lambda _: c.GetPolicies([QUEUE]),
    "totals": lambda _: c.GetTotals(),
    "time": lambda _: c.GetTime(),
    "schedule": lambda _: c.GetSchedule("tidy"),
    "schedules": lambda _: c.ListSchedules(10),
    "due schedules": lambda _: c.DueSchedules(NOW, 10),
    "next tick": lambda _: c.NextTick(),
}


def what_happens(situation: str, command: str) -> str:
    """One cell of the table: the events, the answer, and the job afterwards, in few words."""
    scene = SITUATIONS[situation]()
    try:
        events, answer = run(scene.state, COMMANDS[command](scene), scene.now)
    except Refused as refusal:
        return f"refused: {type(refusal).__name__}"
    return f"{_events(events)} | {_answer(answer)} | {_job(scene.job)}"


def _events(events: list[AnyEvent]) -> str:
    return " ".join(type(event).__name__ for event in events) or "-"


def _answer(answer: Any) -> str:
    if isinstance(answer, list):
        return " ".join(_answer(one) for one in answer) or "nothing"
    match answer:
        case None:
            return "-"
        case c.Lost():
            return f"Lost {answer.reason}"
        case c.AlreadyFinished() | c.Cancelled() | c.Nacked() | c.Released() | c.Died() | c.Expiration():
            return f"{type(answer).__name__} {answer.state}{_repeat(answer)}"
        case c.Operated():
            return f"{len(answer.job_ids)} job" if len(answer.job_ids) == 1 else f"{len(answer.job_ids)} jobs"
        case int():
            return f"{answer} pruned"
        case _:
            return f"{type(answer).__name__}{_repeat(answer)}"


def _repeat(answer: Any) -> str:
    return " again" if getattr(answer, "is_repeat", False) else ""


def _job(job: Job | None) -> str:
    if job is None:
        return "gone"
    last = job.executions[-1] if job.executions else None
    return f"{job.state}" if last is None else f"{job.state}, {last.status}"


def table() -> str:
    """The whole table, commands that do the same on one line."""
    lines: list[str] = []
    for situation in SITUATIONS:
        alike: dict[str, list[str]] = {}
        for command in COMMANDS:
            alike.setdefault(what_happens(situation, command), []).append(command)
        lines += [f"[{situation}]", *(f"{'; '.join(names)} => {cell}" for cell, names in alike.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table())
