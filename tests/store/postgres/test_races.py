"""Many connections at once, and a checker over what each of them saw.

Leases of a job never overlap, attempts and fences rise, a job is committed once, nothing is lost, lanes keep their
order, and no deadlock reaches a caller.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.store.postgres.admin.check import check, rebuild
from leasemill.store.postgres.insert import insert_jobs
from leasemill.store.postgres.positions import RANKS, Scan
from leasemill.store.postgres.statements import Statement
from leasemill.store.postgres.steps import Steps
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import claim
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.open_transaction import open_transaction
from tests.store.postgres.test_isolation import await_waiting

SHORT = Policy(lease_ttl_us=300_000, max_retries=1_000, max_expirations=1_000, backoff_base_us=1_000)


def together(*works: Callable[[], None]) -> None:
    """Run at once; an error of any of them is raised when all have ended."""
    with ThreadPoolExecutor(len(works)) as executor:
        running = [executor.submit(work) for work in works]
    for one in running:
        one.result()


class History:
    """What was granted and what was acknowledged, by whom and when."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.leases: dict[str, list[c.Lease]] = defaultdict(list)
        self.acked: list[str] = []

    def granted(self, leases: list[c.Lease]) -> None:
        with self.lock:
            for lease in leases:
                self.leases[lease.job.id].append(lease)

    def ended(self, job_id: str) -> None:
        with self.lock:
            self.acked.append(job_id)

    def check(self, ids: set[str]) -> None:
        assert len(self.acked) == len(set(self.acked)), "a job was acknowledged twice"
        assert set(self.acked) == ids, "a job was lost"
        for leases in self.leases.values():
            leases.sort(key=lambda lease: lease.attempt)
            assert [lease.attempt for lease in leases] == list(range(1, len(leases) + 1))
            assert [lease.fence for lease in leases] == sorted({lease.fence for lease in leases})
            assert len({lease.token for lease in leases}) == len(leases)


def check_executions(store: PostgresStore, ids: set[str]) -> None:
    for job_id in ids:
        job = store.job(job_id)
        assert job is not None
        assert job.state is JobState.SUCCEEDED, job
        ends = [(one.leased_at, one.finished_at or 0) for one in job.executions]
        assert all(ended_at <= begun_at for (_, ended_at), (begun_at, _) in pairwise(ends)), "leases of a job overlap"
        assert sum(one.committed_at is not None for one in job.executions) == 1


@rule("C7", "I1", "I2", "I3", "X4", "N1", "N2")
def test_workers_that_fail_stall_and_release_lose_and_double_nothing(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    store, history, source = PostgresStore(postgres_url), History(), random.Random(5)
    lanes = [None, None, "a", "b", "c"]
    jobs = [JobSpec(f"j{number}", "q", "k", lane=source.choice(lanes), policy=SHORT) for number in range(150)]
    left, deadline = threading.Semaphore(0), time.monotonic() + 80
    order: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def worker(name: str, seed: int) -> None:
        draw = random.Random(seed)
        own = PostgresStore(postgres_url)
        while len(history.acked) < len(jobs) and time.monotonic() < deadline:
            leases = own.claim(name, ["q"], draw.choice((1, 3, 8)))
            history.granted(leases)
            for lease in leases:
                reference = (lease.job.id, lease.token)
                match draw.choices(("ack", "nack", "release", "stall"), (70, 12, 12, 6))[0]:
                    case "ack":
                        if lease.job.lane is not None:
                            order[lease.job.lane].append(reference)
                        if isinstance(own.ack([c.AckReport(*reference)])[0], c.Acked):
                            history.ended(lease.job.id)
                        elif lease.job.lane is not None:
                            order[lease.job.lane].remove(reference)
                    case "nack":
                        own.nack([c.NackReport(*reference, "broke", jitter=draw.random())])
                    case "release":
                        own.release([c.ReleaseReport(*reference)])
                    case "stall":
                        own.start([c.StartReport(*reference)])
            if not leases:
                time.sleep(0.005)
        own.close()

    def producer() -> None:
        for first in range(0, len(jobs), 10):
            store.enqueue(jobs[first : first + 10])
            left.release()

    def reaper() -> None:
        while len(history.acked) < len(jobs) and time.monotonic() < deadline:
            store.expire(100)
            time.sleep(0.05)

    together(producer, reaper, reaper, *(partial(worker, f"w{n}", n) for n in range(6)))
    ids = {job.id for job in jobs}
    history.check(ids)
    check_executions(store, ids)
    for lane, ended in order.items():
        assert [job_id for job_id, _ in ended] == [job.id for job in jobs if job.lane == lane], (
            f"lane {lane} out of order"
        )
    assert check(admin, schema) == []
    store.close()


@rule("E6")
def test_16_clients_with_overlapping_batches_in_random_order_meet_no_deadlock(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    with PostgresStore(f"{postgres_url}&pool_size=20&retry_for_s=20") as store:
        jobs = [JobSpec(f"j{n}", "q", "k", lane=None if n % 3 else f"l{n}", policy=SHORT) for n in range(90)]
        store.enqueue(jobs)
        leases = store.claim("w", ["q"], 90)

        def client(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(6):
                batch = draw.sample(leases, 40)
                references = [(lease.job.id, lease.token) for lease in batch]
                match draw.randrange(6):
                    case 0:
                        store.ack([c.AckReport(*one) for one in references])
                    case 1:
                        store.nack([c.NackReport(*one, "broke") for one in references])
                    case 2:
                        store.extend([c.LeaseRef(*one) for one in references])
                    case 3:
                        store.start([c.StartReport(*one) for one in references])
                    case 4:
                        store.cancel([job_id for job_id, _ in references[:10]], by="ada", reason="because")
                    case _:
                        store.enqueue(draw.sample(jobs, 40))

        together(*(partial(client, n) for n in range(16)))
        assert check(admin, schema) == []


@rule("N3", "N4")
def test_a_job_that_commits_as_its_lanes_head_ends_is_never_stranded(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    """Producers enqueue in transactions of their own, open for a while, as heads end beside them."""
    count, lanes = 60, ("a", "b", "c")
    done: list[str] = []
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("first", "q", "k")])
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in store.claim("w", ["q"], 1)])

        def producer(seed: int) -> None:
            draw = random.Random(seed)
            for number in range(count):
                job = JobSpec(f"p{seed}-{number}", "q", "k", lane=draw.choice(lanes))
                with open_transaction(store) as transaction:
                    transaction.run(insert_jobs([job], store._known.channel))
                    time.sleep(draw.uniform(0, 0.004))

        def worker() -> None:
            deadline = time.monotonic() + 80
            while len(done) < 3 * count and time.monotonic() < deadline:
                for lease in store.claim("w", ["q"], 5):
                    assert isinstance(store.ack([c.AckReport(lease.job.id, lease.token)])[0], c.Acked)
                    done.append(lease.job.id)

        together(*(partial(producer, n) for n in range(3)), worker, worker)
        assert len(done) == len(set(done)) == 3 * count
        read = sorted(store.jobs(limit=1_000).jobs, key=lambda job: job.executions[0].fence)
        for seed in range(3):
            for lane in lanes:
                ids = [one.spec.id for one in read if one.spec.lane == lane and one.spec.id.startswith(f"p{seed}-")]
                assert ids == sorted(ids, key=lambda job_id: int(job_id.partition("-")[2]))
        assert check(admin, schema) == []


@rule("N6")
def test_an_open_transaction_of_a_producer_blocks_no_ack_and_no_lane(postgres_url: str, schema: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("head", "q", "k", lane="a"), JobSpec("behind", "q", "k", lane="a")])
        (lease,) = store.claim("w", ["q"], 1)
        with open_transaction(store) as transaction:
            transaction.run(insert_jobs([JobSpec("open", "q", "k", lane="a")], None))
            (acked,) = store.ack([c.AckReport(lease.job.id, lease.token)])
            assert acked == c.Acked("head", c.LaneHint("behind", None))
            (lease,) = store.claim("w", ["q"], 1)
            assert store.ack([c.AckReport(lease.job.id, lease.token)]) == [c.Acked("behind")]
        assert [one.job.id for one in store.claim("w", ["q"], 1)] == ["open"]


@rule("C4")
def test_what_is_derived_is_found_wrong_and_made_anew(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    with PostgresStore(postgres_url) as store:
        lanes = [None, "a", "b"]
        store.enqueue([JobSpec(f"j{n}", "q", "k", lane=lanes[n % 3], priority=n % 2) for n in range(30)])
        store.claim("w", ["q"], 2)
        before = admin.execute(f"select * from {schema}.ready order by seq".encode()).fetchall()
        line = admin.execute(f"select no from {schema}.waiting order by queue, lane, turn".encode()).fetchall()
        admin.execute(f"delete from {schema}.ready; delete from {schema}.waiting".encode())
        assert check(admin, schema)
        assert rebuild(admin, schema) == len(before)
        assert check(admin, schema) == []
        assert admin.execute(f"select * from {schema}.ready order by seq".encode()).fetchall() == before
        again = admin.execute(f"select no from {schema}.waiting order by queue, lane, turn".encode()).fetchall()
        assert again == line


@rule("C2", "C5")
def test_a_repeated_claim_hides_no_job_that_has_come_back_before_its_own(postgres_url: str) -> None:
    with PostgresStore(postgres_url, clock=ManualClock()) as store:
        store.enqueue([JobSpec(one, "q", "k") for one in "abc"])
        (first,) = store.claim("w", ["q"], 1)
        second = store.claim("w", ["q"], 1, request_id="second")
        store.release([c.ReleaseReport(first.job.id, first.token)])
        assert store.claim("w", ["q"], 1, request_id="second") == second
        assert [lease.job.id for lease in store.claim("w", ["q"], 1)] == ["a"]


@rule("C5")
def test_requests_are_kept_while_they_have_leases_and_can_be_made_anew(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:

        def forget() -> int:
            return store._thread_driver.run(store._maintenance.retention.forget_requests())

        store.enqueue([JobSpec(f"j{n}", "q", "k") for n in range(5)])
        first = store.claim("w", ["q"], 2, request_id="first")
        second = store.claim("w", ["q"], 1, request_id="second")
        admin.execute(f"delete from {schema}.requests".encode())
        assert check(admin, schema) == [
            f"leased by a request that does not know it: job {lease.job.id}" for lease in (*first, *second)
        ]
        rebuild(admin, schema)
        assert check(admin, schema) == []
        assert store.claim("w", ["q"], 2, request_id="first") == first
        admin.execute(f"update {schema}.requests set forget_at = %s".encode(), [clock.now() + 1])
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in (first[0], *second)])
        assert forget() == 0
        clock.advance(us=1)
        assert forget() == 2
        assert admin.execute(f"select id from {schema}.requests".encode()).fetchall() == [("first",)]
        assert forget() == 0
        assert store.claim("w", ["q"], 2, request_id="first") == first[1:]
        assert [lease.job.id for lease in store.claim("w", ["q"], 2, request_id="second")] == ["j3", "j4"]
        assert check(admin, schema) == []


LATE = 4_711


def held_up(store: PostgresStore) -> None:
    """Its claims take their snapshot, and then wait for the lock LATE before they look whether they are alone."""
    text, names, types = store._thread_driver.statements["claim"]
    waits = f"case when pg_advisory_xact_lock({LATE})::text is null or not pg_try_advisory".encode()
    assert text.count(b"case when not pg_try_advisory") == 1
    late = Statement(text.replace(b"case when not pg_try_advisory", waits), names, types)
    store._thread_driver.statements._read["claim"] = late


@rule("C5")
@pytest.mark.parametrize("others", [0, 1], ids=["nothing else to claim", "another job to claim"])
def test_a_claim_repeated_as_the_first_is_committed_returns_the_same_leases(
    postgres_url: str, admin: psycopg.Connection[Any], others: int
) -> None:
    """The first commits after the snapshot of the second, and before that looks whether it is alone."""
    with PostgresStore(postgres_url) as one, PostgresStore(f"{postgres_url}&application_name=late") as other:
        one.enqueue([JobSpec(f"job-{number}", "q", "k") for number in range(1 + others)])
        held_up(other)
        admin.execute("select pg_advisory_lock(%s)", [LATE])
        with ThreadPoolExecutor(1) as executor:
            try:
                repeated = executor.submit(other.claim, "w", ["q"], 1, request_id="first")
                await_waiting(admin, "late")
                first = one.claim("w", ["q"], 1, request_id="first")
            finally:
                admin.execute("select pg_advisory_unlock(%s)", [LATE])
            assert [lease.job.id for lease in first] == ["job-0"]
            assert repeated.result() == first


@rule("C5")
def test_a_claim_whose_second_look_is_repeated_as_the_first_claim_is_committed_returns_the_same_leases(
    postgres_url: str, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked from a position before the first claim began; the first commits during its full look."""
    claimed_from, scans = claim._claim_from, []

    def held_up_when_full(scan: Scan, *arguments: Any) -> Steps[claim.Claimed]:
        scans.append(scan.is_full)
        if scans == [False, True]:
            admin.execute("select pg_advisory_lock(%s)", [LATE])
        return claimed_from(scan, *arguments)

    with PostgresStore(postgres_url) as one, PostgresStore(f"{postgres_url}&application_name=late") as other:
        one.enqueue([JobSpec("job", "q", "k")])
        other._known.positions._reached = {("q", rank): (2**62, 0) for rank in range(RANKS)}
        other._known.positions._looked_fully_at_s = math.inf
        held_up(other)
        monkeypatch.setattr(claim, "_claim_from", held_up_when_full)
        with ThreadPoolExecutor(1) as executor:
            try:
                repeated = executor.submit(other.claim, "w", ["q"], 1, request_id="first")
                await_waiting(admin, "late")
                monkeypatch.undo()
                first = one.claim("w", ["q"], 1, request_id="first")
            finally:
                admin.execute("select pg_advisory_unlock(%s)", [LATE])
            assert scans == [False, True]
            assert [lease.job.id for lease in first] == ["job"]
            assert repeated.result() == first
