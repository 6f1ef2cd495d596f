"""Connections cut before, during and after each request of each verb, and of a user's transactions.

Whoever gets no answer repeats the same call. Then there is one job, one effect, and the answer is the one that the
first call would have got. For each scene the cut moves from its first request to its last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, cycle
from typing import TypeVar

import psycopg

from leasemill import AcquireStatus, SucceedStatus, Worker, WorkLease
from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import AbortReason, Job, JobSpec, JobState, Policy
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.store import PostgresStore
from tests.fire import bank
from tests.fire.faults import Ground
from tests.fire.load import Verdict
from tests.fire.proxy import Cut, Proxy
from tests.lab.processes import wait_until

AnswerT = TypeVar("AnswerT")
TRIES = 20
SHORT = Policy(lease_ttl_us=1_000)
MOST_REQUESTS = 40


class Stage:
    """A store that is reached through the proxy, the same one directly, and jobs of the scene's own."""

    def __init__(self, direct: PostgresStore, url: str, cut: PostgresStore, cut_url: str, run: int) -> None:
        self.direct = direct
        self.conninfo = parse_url(url)[0]
        self.store = cut
        self.cut_conninfo = parse_url(cut_url)[0]
        self.name = f"run-{run}"
        self.queue = f"q-{run}"

    def answer(self, ask: Callable[[], AnswerT]) -> AnswerT:
        """The answer, asked for again until it is heard."""
        for _ in range(TRIES):
            try:
                return ask()
            except (Unavailable, psycopg.OperationalError):
                time.sleep(0.02)
        raise AssertionError(f"no answer after {TRIES} tries")

    def enqueued(self, *, lane: str | None = None, number: int = 0, policy: Policy | None = None) -> str:
        job_id = f"{self.name}-{number}"
        self.direct.enqueue([JobSpec(job_id, self.queue, "k", lane=lane, policy=policy)])
        return job_id

    def leased(self, *, lane: str | None = None, policy: Policy | None = None) -> c.Lease:
        self.enqueued(lane=lane, policy=policy)
        (lease,) = self.direct.claim("w", [self.queue], 1)
        return lease

    def job(self, job_id: str) -> Job:
        job = self.direct.job(job_id)
        assert job is not None, f"{job_id} is lost"
        return job

    def count(self) -> int:
        return len(self.direct.jobs(c.JobFilter(queue=self.queue)).jobs)


Act = Callable[[], None]
Scene = Callable[[Stage], Act]
"""Sets the scene on the direct way; what it gives back is done through the proxy, and checks what came of it."""


def enqueue(stage: Stage) -> Act:
    jobs = [JobSpec(f"{stage.name}-{number}", stage.queue, "k") for number in range(3)]

    def act() -> None:
        answers = stage.answer(lambda: stage.store.enqueue(jobs))
        assert [answer.job_id for answer in answers] == [job.id for job in jobs]
        assert not any(isinstance(answer, c.Conflict) for answer in answers)
        assert stage.count() == 3

    return act


def enqueue_in_lane(stage: Stage) -> Act:
    jobs = [JobSpec(f"{stage.name}-{number}", stage.queue, "k", lane="lane") for number in range(3)]

    def act() -> None:
        stage.answer(lambda: stage.store.enqueue(jobs))
        assert stage.count() == 3
        for job in jobs:
            (lease,) = stage.direct.claim("w", [stage.queue], 3)
            assert lease.job.id == job.id
            stage.direct.ack([c.AckReport(lease.job.id, lease.token)])

    return act


def claim(stage: Stage) -> Act:
    for number in range(4):
        stage.enqueued(number=number)
    tokens = [f"{stage.name}-t{number}" for number in range(2)]
    command = c.Claim("w", [stage.queue], 2, tokens, stage.name, {})

    def act() -> None:
        leases = stage.answer(lambda: stage.store.run(command))
        assert [(lease.job.id, lease.token, lease.attempt) for lease in leases] == [
            (f"{stage.name}-{number}", tokens[number], 1) for number in range(2)
        ]
        page = stage.direct.jobs(c.JobFilter(queue=stage.queue))
        assert [job.attempt for job in page.jobs] == [1, 1, 0, 0], "a claim took more than it answered"

    return act


def start(stage: Stage) -> Act:
    lease = stage.leased()

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.start([c.StartReport(lease.job.id, lease.token)]))
        assert answer == c.Started(lease.job.id)
        assert stage.job(lease.job.id).executions[-1].started_at is not None

    return act


def extend(stage: Stage) -> Act:
    lease = stage.leased()

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.extend([c.LeaseRef(lease.job.id, lease.token)]))
        assert isinstance(answer, c.Extended)
        assert stage.job(lease.job.id).executions[-1].expires_at == answer.expires_at > lease.expires_at

    return act


def commit(stage: Stage) -> Act:
    lease = stage.leased()
    followups = [c.Followup(stage.queue, "k"), c.Followup(stage.queue, "k", lane="lane")]

    def act() -> None:
        answer = stage.answer(lambda: stage.store.commit(lease.job.id, lease.token, result=b"1", followups=followups))
        assert isinstance(answer, c.Committed)
        assert len(answer.followup_ids) == 2
        assert stage.count() == 3
        assert stage.job(lease.job.id).result == b"1"

    return act


def ack(stage: Stage) -> Act:
    lease = stage.leased()

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.ack([c.AckReport(lease.job.id, lease.token, b"1")]))
        assert isinstance(answer, c.Acked), answer
        job = stage.job(lease.job.id)
        assert (job.state, job.result, len(job.executions)) == (JobState.SUCCEEDED, b"1", 1), job

    return act


def ack_in_lane(stage: Stage) -> Act:
    lease = stage.leased(lane="lane")
    following = stage.enqueued(lane="lane", number=1)

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.ack([c.AckReport(lease.job.id, lease.token)]))
        assert isinstance(answer, c.Acked)
        assert stage.job(lease.job.id).state is JobState.SUCCEEDED
        (found,) = stage.direct.claim("w", [stage.queue], 3)
        assert found.job.id == following

    return act


def nack(stage: Stage) -> Act:
    lease = stage.leased()

    def act() -> None:
        report = c.NackReport(lease.job.id, lease.token, "broke", delay_us=0)
        (answer,) = stage.answer(lambda: stage.store.nack([report]))
        assert isinstance(answer, c.Nacked)
        assert (answer.state, answer.retries) == (JobState.READY, 1)
        assert stage.job(lease.job.id).retries == 1, "a failure was counted twice"

    return act


def nack_for_good(stage: Stage) -> Act:
    lease = stage.leased(lane="lane")

    def act() -> None:
        report = c.NackReport(lease.job.id, lease.token, "broke", is_permanent=True)
        (answer,) = stage.answer(lambda: stage.store.nack([report]))
        assert isinstance(answer, c.Nacked)
        assert answer.state is JobState.FAILED
        assert stage.job(lease.job.id).state is JobState.FAILED

    return act


def release(stage: Stage) -> Act:
    lease = stage.leased()

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.release([c.ReleaseReport(lease.job.id, lease.token)]))
        assert isinstance(answer, c.Released), answer
        job = stage.job(lease.job.id)
        assert (answer.state, job.state, len(job.executions)) == (JobState.READY, JobState.READY, 1)

    return act


def expire(stage: Stage) -> Act:
    lease = stage.leased(policy=SHORT)
    time.sleep(0.005)

    def is_recorded() -> bool:
        """A row that the abandoned call has still locked is left for the next round, as a reaper makes them."""
        stage.answer(stage.store.expire)
        return stage.job(lease.job.id).state is not JobState.LEASED

    def act() -> None:
        wait_until(is_recorded, "the lease to be recorded as expired")
        job = stage.job(lease.job.id)
        assert (job.state, [one.reason for one in job.executions]) == (JobState.READY, [AbortReason.EXPIRED]), job

    return act


def late_ack(stage: Stage) -> Act:
    lease = stage.leased(policy=SHORT)
    time.sleep(0.005)

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.ack([c.AckReport(lease.job.id, lease.token)]))
        assert isinstance(answer, c.Lost)
        assert len(stage.job(lease.job.id).refusals) == 1, "a refusal was recorded twice"

    return act


def succeed(stage: Stage) -> Act:
    """Of a work lease, which takes a second report for a mistake: a lost reply is not the caller's."""
    work = WorkLease(stage.store, f"offsets-{stage.queue}")
    lease = WorkLease(stage.direct, work.queue).try_acquire("domain", 7).lease
    assert lease is not None

    def act() -> None:
        assert stage.answer(lambda: work.succeed("domain", lease.token)).status is SucceedStatus.NO_BACKLOG
        again = WorkLease(stage.direct, work.queue).try_acquire("domain", 7)
        assert again.status is AcquireStatus.ALREADY_PROCESSED

    return act


def acquire(stage: Stage) -> Act:
    request = c.AcquireRequest(f"offsets-{stage.queue}", "domain", 7, "w", stage.name)

    def act() -> None:
        (answer,) = stage.answer(lambda: stage.store.acquire([request]))
        assert isinstance(answer, c.Acquired | c.AlreadyAcquired), answer
        assert (answer.lease.token, answer.lease.attempt) == (stage.name, 1)
        (job,) = stage.direct.jobs(c.JobFilter(queue=request.queue)).jobs
        assert (job.state, len(job.executions)) == (JobState.LEASED, 1)

    return act


def stream(stage: Stage) -> Act:
    """Offsets of a domain that is known: taken, lined up, taken from the line, and their ends."""
    before, work = (WorkLease(store, f"offsets-{stage.queue}") for store in (stage.direct, stage.store))
    lease = before.try_acquire("domain", 6).lease
    assert lease is not None
    before.succeed("domain", lease.token)

    def taken(offset: int) -> str:
        answer = stage.answer(lambda: work.try_acquire("domain", offset))
        assert answer.status in (AcquireStatus.ACQUIRED, AcquireStatus.ALREADY_ACQUIRED)
        assert answer.lease is not None
        return answer.lease.token

    def act() -> None:
        first = taken(7)
        assert stage.answer(lambda: work.try_acquire("domain", 8)).status is AcquireStatus.ENQUEUED
        assert stage.answer(lambda: work.succeed("domain", first)).next_offset == 8
        second = taken(8)
        assert stage.answer(lambda: work.succeed("domain", second)).status is SucceedStatus.NO_BACKLOG
        view = stage.direct.lane(work.queue, "domain")
        assert view is not None
        assert (view.head, view.finished) == (None, ((6, 8),))

    return act


def user_commit(stage: Stage) -> Act:
    """The whole path: claim, handler, the user's writes, the marker and COMMIT, ack; at every request of it."""
    job_id = bank.job_id(stage.name, 1)
    with psycopg.connect(stage.conninfo, autocommit=True) as connection:
        connection.execute("insert into bank.accounts (name) values (%s)", [stage.name])
    with bank.app.bound_to(stage.direct):
        bank.deposit.options(job_id=job_id).enqueue(stage.name, 1, 100)

    def act() -> None:
        with bank.app.bound_to(stage.store):
            for _ in range(TRIES):
                Worker(bank.app, drain=True, handle_signals=False).run_sync()
                if stage.job(job_id).state is JobState.SUCCEEDED:
                    break
                time.sleep(0.1)  # it failed and waits for its retry
        with psycopg.connect(stage.conninfo, autocommit=True) as connection:
            entries = connection.execute("select count(*) from bank.entries where job = %s", [job_id]).fetchone()
            balance = connection.execute("select cents from bank.accounts where name = %s", [stage.name]).fetchone()
        assert entries == (1,), f"{entries} effects"
        assert balance == (100,)
        assert stage.job(job_id).state is JobState.SUCCEEDED

    return act


def user_enqueue(stage: Stage) -> Act:
    """A caller's transaction, repeated by the caller: its order and its job are there once, and together."""
    job_id = bank.job_id(stage.name, 1)
    job = bank.deposit.options(job_id=job_id)

    def order() -> None:
        with psycopg.connect(stage.cut_conninfo) as connection, bank.app.bound_to(stage.direct):
            connection.execute(
                "insert into bank.orders values (%s, %s, 1) on conflict do nothing", [job_id, stage.name]
            )
            job.using(connection).enqueue(stage.name, 1, 100)

    def act() -> None:
        stage.answer(order)
        with psycopg.connect(stage.conninfo, autocommit=True) as connection:
            found = connection.execute("select count(*) from bank.orders where job = %s", [job_id]).fetchone()
        assert found == (1,)
        assert stage.job(job_id).state is JobState.READY
        stage.direct.cancel([job_id], by="test", reason="done with")

    return act


SCENES: tuple[Scene, ...] = (
    *(enqueue, enqueue_in_lane, claim, start, extend, commit, ack, ack_in_lane, nack, nack_for_good, release, expire),
    *(late_ack, acquire, succeed, stream, user_commit, user_enqueue),
)


class Cutting:
    """Plays scenes, each with a cut at one request."""

    def __init__(self, ground: Ground, proxy: Proxy) -> None:
        self.verdict = Verdict()
        self._proxy = proxy
        self._url = ground.url()
        self._cut_url = self._url.replace(f":{ground.server.port}/", f":{proxy.port}/")
        self._runs = count()

    def play(self, scenes: tuple[Scene, ...]) -> None:
        """Every scene with every cut at every request it has."""
        for scene in scenes:
            for cut in Cut:
                for number in range(1, MOST_REQUESTS):
                    if not self._is_cut(scene, cut, number):
                        break

    def play_in_turn(self, scenes: tuple[Scene, ...], first: int) -> None:
        """Every scene, cut at every request it has, each time in the next way: a third of them all."""
        ways = cycle(Cut)
        for _ in range(first % len(Cut)):
            next(ways)
        for scene in scenes:
            for number in range(1, MOST_REQUESTS):
                if not self._is_cut(scene, next(ways), number):
                    break

    def _is_cut(self, scene: Scene, cut: Cut, number: int) -> bool:
        """Whether there was such a request."""
        with PostgresStore(self._url) as direct, PostgresStore(self._cut_url) as store:
            act = scene(Stage(direct, self._url, store, self._cut_url, next(self._runs)))
            self._proxy.arm(cut, number)
            begun = time.monotonic()
            try:
                act()
            except AssertionError as error:
                self.verdict.wrong.append(f"{scene.__name__}, cut {cut.name} request {number}: {error}")
            if self._proxy.disarm():
                return False
        self.verdict.runs += 1
        self.verdict.recovered_after(time.monotonic() - begun)
        return True


@contextmanager
def cutting_at(ground: Ground) -> Iterator[Cutting]:
    with ground.connected() as connection:
        bank.open_accounts(connection, [])
    with Proxy(ground.server.port) as proxy:
        yield Cutting(ground, proxy)


def connections_cut(ground: Ground, cuts: int) -> Verdict:
    """Over and over until there were enough cuts."""
    with cutting_at(ground) as cutting:
        while cutting.verdict.runs < cuts and not cutting.verdict.wrong:
            cutting.play(SCENES)
    return cutting.verdict


def connections_cut_in_turn(ground: Ground, scenes: tuple[Scene, ...]) -> Verdict:
    """Each request once; which of them is cut in which way follows from the seed."""
    with cutting_at(ground) as cutting:
        cutting.play_in_turn(scenes, ground.seed)
    return cutting.verdict
