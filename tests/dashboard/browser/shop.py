"""A quarter of an hour in the life of a shop's jobs, in no time: what the pictures of the guide show.

Time is a ManualClock, so the charts are full at once. Everything is done through the store's verbs; what can be seen on
a page has happened.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec
from msgspec.structs import replace

from leasemill.dashboard.sampler import Sampler
from leasemill.kernel import commands as c
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, Job, JobSpec, JobState, LimitTerms, OnFailure, Order, Policy
from leasemill.store.memory import MemoryStore
from leasemill.store.presence import MemoryPresence
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock

STEP_S: Final = 5
STEPS: Final = 180
STANDS_STILL: Final = (70, 169)
GOES_ON: Final = (84, 177)
"""When a worker stands still, and when it goes on and reports what is no longer its own."""
WORKERS: Final = ("web-1.4211", "web-2.3178", "batch-1.977")
QUEUES: Final = ("mail", "billing", "thumbnails", "reports")
KINDS: Final = {
    "mail": "send_receipt",
    "billing": "charge_card",
    "thumbnails": "resize_image",
    "reports": "build_report",
}
ERRORS: Final = {
    "send_receipt": "SMTPRecipientsRefused: mailbox 'ann@example.com' is full",
    "charge_card": "TimeoutError: the payment gateway did not answer within 10 s",
    "resize_image": "UnidentifiedImageError: cannot identify image file 'upload-7713.webp'",
    "build_report": "OperationalError: canceling statement due to statement timeout",
}
RESET: Final = "ConnectionResetError: [Errno 104] Connection reset by peer"
TRACE: Final = """
  File "/srv/shop/jobs.py", line 41, in charge_card
    receipt = gateway.charge(order.total, idempotency_key=ctx.key)
  File "/srv/shop/gateway.py", line 88, in charge
    raise TimeoutError("the payment gateway did not answer within 10 s") from error
caused by OSError: [Errno 110] Connection timed out"""


class Shop:
    def __init__(self) -> None:
        self.clock = ManualClock(1_900_000_000 * SECOND)
        self.store = MemoryStore(self.clock)
        self.store.presence = MemoryPresence(lambda: self.clock.now() / SECOND, self.store.order)
        self._random = random.Random(7)
        self._number = 0
        self._held: list[c.Lease] = []
        self._claimed = self._refused = self._expired = 0
        self._zombies: list[c.Lease] = []

    def live(self, sampler: Sampler) -> None:
        """A quarter of an hour: a worker dies in it, and another one stands still for a while."""
        self.store.set_limit(QUEUE_LIMIT + "reports", LimitTerms(2), by="ann", reason="the database is small")
        blocking = Policy(max_retries=0, on_failure=OnFailure.BLOCK)
        self.store.set_policy("billing", blocking, by="ann", reason="charges stay in order")
        for step in range(STEPS):
            self._enqueue(step)
            self._work(step)
            self._publish()
            sampler.sample()
            if step < STEPS - 1:
                self.clock.advance(s=STEP_S)
        self.store.order_worker(WORKERS[2], Order.QUIET, by="ann", reason="its memory grows: I am looking at it")
        self.store.pause("thumbnails", by="ann", reason="the image server is being moved")
        self._meanwhile(6)
        self.store.extend([c.LeaseRef(one.job.id, one.token) for one in self._held[::2]])
        self._meanwhile(5)
        self._publish()
        sampler.sample()

    def _meanwhile(self, seconds: int) -> None:
        """Other jobs come and go while those that are held are held."""
        self.clock.advance(s=seconds)
        self.store.enqueue([self._spec("mail") for _ in range(7 * seconds)])
        for lease in self.store.claim(WORKERS[0], ["mail"], 6 * seconds):
            self._end(lease)

    def _enqueue(self, step: int) -> None:
        wave = 30 + 18 * ((step // 30) % 3 == 1) + self._random.randrange(12)
        self.store.enqueue([self._spec(self._random.choices(QUEUES, (8, 4, 6, 1))[0]) for _ in range(wave)])

    def _spec(self, queue: str) -> JobSpec:
        self._number += 1
        order = 48_000 + self._number
        payload = {"order": order, "customer": f"c-{order % 97}", "total": f"{order % 120}.90", "card_token": "tok_1"}
        lane = f"customer-{order % 97}" if queue == "billing" else None
        headers = {"tenant": "north" if order % 3 else "south"}
        kind, content = KINDS[queue], msgspec.json.encode(payload)
        return JobSpec(self._id(kind, order), queue, kind, content, lane, headers=headers)

    def _id(self, kind: str, order: int) -> str:
        """Images get ids as an app makes them, UUIDs of version 7: those of one moment begin alike."""
        if kind != "resize_image":
            return f"{kind.replace('_', '-')}-{order}"
        drawn = f"7{self._random.getrandbits(12):03x}8{self._random.getrandbits(60):015x}"
        digits = f"{self.clock.now() // 1_000:012x}{drawn}"
        return "-".join(digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))

    def _work(self, step: int) -> None:
        self._expired += len(self.store.expire())
        if step in STANDS_STILL:  # its leases run out, others take its jobs
            self._zombies, self._held = self._held[:6], self._held[6:]
            self.store.extend([c.LeaseRef(one.job.id, one.token) for one in self._zombies])
        if step in GOES_ON:
            for lease in self._zombies:
                self.store.commit(lease.job.id, lease.token, result=b"{}")
                self._refused += 1
            self._zombies = []
        room = 44 + self._random.randrange(14) - 26 * (60 < step < 76)
        for lease in self._held:
            self._end(lease)
        self._held = []
        for worker in WORKERS:
            leases = self.store.claim(worker, QUEUES, room // 3)
            self.store.start([c.StartReport(one.job.id, one.token) for one in leases])
            self._claimed += len(leases)
            keep = 5 if worker != WORKERS[2] else 4
            self._held += leases[:keep]
            self.clock.advance(us=2_000)
            for lease in leases[keep:]:
                self._end(lease)

    def _end(self, lease: c.Lease) -> None:
        chance, job, error = self._random.random(), lease.job, ERRORS[lease.job.kind]
        if job.kind == "charge_card" and chance < 0.012:
            self.store.nack([c.NackReport(job.id, lease.token, error + TRACE)])
        elif chance < 0.01:
            self.store.nack([c.NackReport(job.id, lease.token, error, is_permanent=True)])
        elif chance < 0.03:
            self.store.nack([c.NackReport(job.id, lease.token, RESET, delay_us=20 * SECOND)])
        else:
            result = msgspec.json.encode({"order": job.id.rpartition("-")[2], "receipt": f"R-{lease.fence}"})
            self.store.ack([c.AckReport(job.id, lease.token, result)])

    def _publish(self) -> None:
        now = self.clock.now() / SECOND
        for index, worker in enumerate(WORKERS):
            mine = [lease for lease in self._held if lease.worker == worker]
            running = [RunningJob(one.job.id, one.job.kind, one.attempt, 1.2, done=3, total=8) for one in mine]
            counters = {"succeeded": self._claimed / 3.0, "refused": 0.0, "reaper_recovered": 0.0}
            if index == 0:
                counters |= {"refused": float(self._refused), "reaper_recovered": float(self._expired)}
            host, queues = worker.partition(".")[0], dict.fromkeys(QUEUES, 1)
            record = WorkerRecord(
                worker, host, 4_000 + index, now - 5_400, now, 2.0, queues, 8, False, running, counters
            )
            instance = f"instance-{index}"
            record = replace(record, instance=instance, takes_orders=True, order=self.store.order(instance))
            self.store.presence.publish(worker, encode_record(record))

    def example(self, state: JobState, *, with_refusal: bool = False, kind: str | None = None) -> Job:
        """A job in this state, the newest."""
        where = c.JobFilter(states=frozenset({state}), kind=kind)
        after: int | None = 0
        while after is not None:
            page = self.store.jobs(where, limit=1_000, after=after, newest_first=True)
            for job in page.jobs:
                if bool(job.refusals) == with_refusal:
                    return job
            after = page.after
        raise LookupError(f"no job is {state}")
