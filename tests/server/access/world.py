"""A store with everything twice: in queue `own.a`, which a key is for, and in `zzz.b`, which it is not for."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from leasemill.kernel import commands as c
from leasemill.kernel.bounds import BATCH_ITEMS
from leasemill.kernel.model import ChainedJob, JobSpec, LimitTerms, LimitUse, Policy, Rules, UniqueKey
from leasemill.kernel.schedule import ScheduleSpec
from leasemill.server.access.authorization import performed
from leasemill.server.access.key_names import end_of
from leasemill.server.access.redact_answer import JobQueues
from leasemill.store.access_keys import AccessKey, new_key
from leasemill.store.memory import MemoryStore
from leasemill.store.worker_records import WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock
from leasemill.wire import requests as r
from leasemill.wire.routes import Role

OWN: Final = "own.a"
FOREIGN: Final = "zzz.b"
SIDES: Final = {"own": OWN, "zzz": FOREIGN}
DECLARED: Final = {"own": "mine", "zzz": "theirs"}
"""Limits that the key's workers and others declared; their names are the whole store's."""
DAY: Final = 86_400_000_000


def key_of(*roles: Role, queues: tuple[str, ...] = ("*",), name: str = "ci") -> AccessKey:
    return new_key(name=name, roles=roles or Role, now=1, by="ada", queues=queues)[0]


def record_of(worker: str, *queues: str, instance: str = "") -> bytes:
    record = WorkerRecord(worker, "host", 1, 0.0, 0.0, 5.0, dict.fromkeys(queues, 1), 1, False, [], {})
    return encode_record(replace(record, instance=instance, takes_orders=True))


class World:
    """On each side: jobs that are ready (`-job`), leased (`-leased`, under the token `-token`) and failed, one in a
    group, one with a unique key, a schedule, limits, a lane and a worker. `own-token` is one of the world's key."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.worker_key = key_of(queues=("own.*",))
        self.ended = end_of(self.worker_key)
        for side, queue in SIDES.items():
            self._fill(side, queue)

    def _fill(self, side: str, queue: str) -> None:
        store, end = self.store, self.ended if side == "own" else ""
        store.create_group(f"{side}-group", then=ChainedJob(queue, "k"))
        unique = Rules(unique=UniqueKey(f"{side}-key"), limits=(LimitUse("shared"),))
        store.enqueue([JobSpec(f"{side}-leased", queue, "k"), JobSpec(f"{side}-failed", queue, "k")])
        tokens = [f"{side}-token{end}", f"{side}-other{end}"]
        store.run(c.Claim(f"{side}-worker{end}", [queue], 2, tokens, f"{side}-request{end}"))
        store.nack([c.NackReport(f"{side}-failed", tokens[1], f"{side}-error", is_permanent=True)])
        store.enqueue([
            JobSpec(f"{side}-job", queue, "k"),
            JobSpec(f"{side}-member", queue, "k", rules=Rules(group=f"{side}-group")),
            JobSpec(f"{side}-unique", queue, "k", rules=unique),
            JobSpec(f"{side}-laned", queue, "k", lane=f"{side}-lane"),
        ])  # fmt: skip
        store.set_limit(f"queue:{queue}", LimitTerms(places=9), by=f"{side}-ada", reason="because")
        store.set_limit("shared", LimitTerms(places=9), by="ada", reason="because")
        store.declare_limits({DECLARED[side]: LimitTerms(places=3)}, by="ci" if end else "other")
        store.set_policy(queue, Policy(max_retries=1), by=f"{side}-ada", reason="because")
        spec = ScheduleSpec(f"{side}-schedule", "@daily", "UTC", JobSpec("", queue, "k"))
        store.run(c.SetSchedule(spec, 5 * DAY, 4 * DAY, f"{side}-ada", "because"))
        worker = f"{side}-worker{end}"
        store.presence.publish(worker, record_of(worker, queue, instance=f"{side}-instance"))

    def run(self, command: c.Command[Any]) -> Any:
        """What a server does with a command."""
        match command:
            case JobQueues():
                page = self.store.run(c.ListJobs(c.JobFilter(job_ids=tuple(command.job_ids)), BATCH_ITEMS))
                return {job.spec.id: job.spec.queue for job in page.jobs}
            case r.PublishPresence():
                return self.store.presence.publish(command.worker_id, command.record)
            case r.RemovePresence():
                return self.store.presence.remove(command.worker_id, command.instance)
            case r.ListPresence():
                return [r.PresenceRecord(*record) for record in self.store.presence.records()]
            case r.WatchQueues() | r.WatchEnd() | r.WatchCancellations():
                return r.Watched(has_changed=False)
            case _:
                return self.store.run(command)

    def perform(self, key: AccessKey, command: c.Command[Any]) -> Any:
        """The answer for a client of the key."""
        steps, answer = performed(key, command), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                return done.value
            answer = self.run(step)

    def image(self) -> str:
        """All that the store holds."""
        return repr((
            self.store.run(c.ListJobs(c.JobFilter(), BATCH_ITEMS)),
            self.store.queues(limit=100),
            self.store.groups(limit=100),
            self.store.limits(limit=100),
            self.store.run(c.ListSchedules(100)),
            self.store.actions(limit=1000),
            self.store.leases(limit=100),
            [record[:2] for record in self.store.presence.records()],
        ))  # fmt: skip
