"""Limits with many claimers at once: never more leases than places, never more grants than a rate allows, nothing lost.

What is checked are the records: every execution with the server's times of its grant and its end.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, LimitTerms, LimitUse, Policy, Rules
from leasemill.store.postgres.admin.check import check, rebuild
from leasemill.store.postgres.limits import claim as limited_claim
from leasemill.store.postgres.limits.choose import LimitWalk
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.lab.processes import IMPORT_PATH
from tests.process.rules_audit import too_early_us
from tests.store.postgres.listening import is_listening
from tests.store.postgres.test_races import together

BRIEF: Final = Policy(max_retries=100, lease_ttl_us=SECOND, max_expirations=100, backoff_base_us=1, backoff_cap_us=2)
"""However often a job fails by chance, it is tried again."""


def under(*names: str) -> Rules:
    return Rules(limits=tuple(LimitUse(*name.split("/", 1)) for name in names))


def set_limit(store: PostgresStore, name: str, **terms: int) -> None:
    store.set_limit(name, LimitTerms(**terms), by="ada", reason="because")


def claim_ids(store: PostgresStore, queues: list[str], limit: int) -> list[str]:
    return [lease.job.id for lease in store.claim("w", queues, limit)]


def ack_all(store: PostgresStore, leases: Iterable[c.Lease]) -> None:
    store.run(c.Ack([c.AckReport(lease.job.id, lease.token) for lease in leases]))


def ended_jobs(store: PostgresStore) -> list[Any]:
    jobs: list[Any] = []
    after = 0
    while True:
        page = store.run(c.ListJobs(c.JobFilter(), 1_000, after))
        jobs += page.jobs
        if page.after is None:
            return jobs
        after = page.after


def most_at_once(store: PostgresStore, concerned: Callable[[JobSpec], bool]) -> int:
    """The most leases that there were at any moment. One that ends as another is granted ended before."""
    changes: list[tuple[int, int]] = []
    for job in ended_jobs(store):
        if concerned(job.spec):
            for one in job.executions:
                assert one.finished_at is not None
                changes += [(one.leased_at, 1), (one.finished_at, -1)]
    most = count = 0
    for _, step in sorted(changes):
        count += step
        most = max(most, count)
    return most


def names(spec: JobSpec, name: str, key: str | None = None) -> bool:
    return spec.rules is not None and LimitUse(name, key) in spec.rules.limits


def work(url: str, seed: int, queues: list[str], *, batch: int = 5) -> None:
    """Claims and ends jobs in various ways until none is left."""
    source, store = random.Random(seed), PostgresStore(url)
    try:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            leases = store.claim(f"w{seed}", queues, source.randint(1, batch))
            if not leases and store.totals().counts[JobState.READY] + store.totals().counts[JobState.LEASED] == 0:
                return
            for lease in leases:
                match source.randrange(10):
                    case 0:
                        store.run(c.Nack([c.NackReport(lease.job.id, lease.token, "broke", jitter=0.0)]))
                    case 1:
                        store.run(c.Release([c.ReleaseReport(lease.job.id, lease.token)]))
                    case 2 if source.random() < 0.3:
                        pass  # left to expire
                    case _:
                        store.run(c.Ack([c.AckReport(lease.job.id, lease.token)]))
            if not leases:
                time.sleep(0.005)
        raise AssertionError("jobs are left")
    finally:
        store.close()


@rule("T1", "T2", "T3")
def test_eight_claimers_never_hold_more_leases_than_places(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    """Two limits in opposite orders, keys, a queue's own limit, failures, releases and leases that expire."""
    store = PostgresStore(postgres_url)
    try:
        set_limit(store, "a", places=3)
        set_limit(store, "b", places=2)
        set_limit(store, "customer", places=1)
        set_limit(store, "queue:r", places=4)
        source = random.Random(7)
        rules = (under("a", "b"), under("b", "a"), under("a"), under("customer/ann", "a"), under("customer/bob"), None)
        jobs = [
            JobSpec(
                f"j{number}",
                source.choice("qr"),
                "k",
                priority=source.choice((0, 5)),
                policy=BRIEF,
                rules=source.choice(rules),
            )
            for number in range(400)
        ]
        store.run(c.Enqueue(jobs))
        together(
            *[lambda seed=seed: work(postgres_url, seed, ["q", "r"] if seed % 2 else ["r", "q"]) for seed in range(8)]
        )
        assert store.totals().counts[JobState.SUCCEEDED] == len(jobs)
        assert most_at_once(store, lambda spec: names(spec, "a")) <= 3
        assert most_at_once(store, lambda spec: names(spec, "b")) <= 2
        assert most_at_once(store, lambda spec: names(spec, "customer", "ann")) <= 1
        assert most_at_once(store, lambda spec: names(spec, "customer", "bob")) <= 1
        assert most_at_once(store, lambda spec: spec.queue == "r") <= 4
        assert check(admin, schema) == []
    finally:
        store.close()


KILLED: Final = """
import sys
from tests.store.postgres.test_limits_races import work
work(sys.argv[1], int(sys.argv[2]), ["q"], batch=3)
"""


@rule("T1", "T3", "T7")
def test_killed_workers_leave_no_place_taken_and_none_too_many(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    store = PostgresStore(postgres_url)
    source = random.Random(3)
    workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(seed: int) -> None:
        workers[seed] = subprocess.Popen(
            [sys.executable, "-c", KILLED, postgres_url, str(seed)], env={"PYTHONPATH": IMPORT_PATH}
        )

    try:
        set_limit(store, "a", places=3)
        jobs = [JobSpec(f"j{number}", "q", "k", policy=BRIEF, rules=under("a")) for number in range(600)]
        store.run(c.Enqueue(jobs))
        for seed in range(3):
            start(seed)
        for seed in range(3, 9):
            time.sleep(0.5)
            victim = source.choice(sorted(workers))
            workers[victim].send_signal(signal.SIGKILL)
            workers.pop(victim).wait()
            start(seed)
        work(postgres_url, 99, ["q"])
        for process in workers.values():
            process.wait(30)
        assert store.totals().counts[JobState.SUCCEEDED] == len(jobs)
        assert most_at_once(store, lambda spec: names(spec, "a")) <= 3
        assert check(admin, schema) == []
    finally:
        for process in workers.values():
            process.kill()
            process.wait()
        store.close()


@rule("T10", "T11")
def test_a_rate_holds_for_all_claimers_together(postgres_url: str) -> None:
    rate, burst, seconds = 100, 5, 3.0
    store = PostgresStore(postgres_url)
    try:
        set_limit(store, "api", rate=rate, per_us=SECOND, burst=burst)
        store.run(c.Enqueue([JobSpec(f"j{number}", "q", "k", rules=under("api")) for number in range(800)]))

        def claimer(seed: int) -> None:
            own, until_s = PostgresStore(postgres_url), time.monotonic() + seconds
            try:
                while time.monotonic() < until_s:
                    leases = own.claim(f"w{seed}", ["q"], 5)
                    ack_all(own, leases)
                    if not leases:
                        own.watch(["q"]).wait(0.05)
            finally:
                own.close()

        together(*[lambda seed=seed: claimer(seed) for seed in range(4)])
        grants = sorted(one.leased_at for job in ended_jobs(store) for one in job.executions)
        assert len(grants) > burst
        interval_us, slack_us = SECOND // rate, 100_000  # the grant is recorded a moment after the rate was charged
        for first, at in enumerate(grants):
            allowed = [other for other in grants[first:] if other < at + SECOND // 2]
            assert len(allowed) <= burst + (SECOND // 2 + slack_us) // interval_us
        took_us = grants[-1] - grants[0]
        assert len(grants) <= burst + (took_us + slack_us) // interval_us
    finally:
        store.close()


@rule("T5")
def test_a_claim_passes_100000_that_wait_and_none_looks_at_them_again(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    store = PostgresStore(postgres_url)
    try:
        set_limit(store, "customer", places=1)
        for first in range(0, 100_000, 10_000):
            jobs = [
                JobSpec(f"a{number}", "q", "k", rules=under("customer/a")) for number in range(first, first + 10_000)
            ]
            store.run(c.Enqueue(jobs, are_new=True))
        store.run(c.Enqueue([JobSpec("b", "q", "k", rules=under("customer/b"))]))
        assert claim_ids(store, ["q"], 2) == ["a0"]  # what it has, before it looks for long
        assert claim_ids(store, ["q"], 1) == ["b"]
        assert store.due_in(["q"]) is None
        assert store.totals().counts == {**dict.fromkeys(JobState, 0), JobState.READY: 99_999, JobState.LEASED: 2}
        rows = admin.execute(f"select (select count(*) from {schema}.ready), count(*) from {schema}.parked".encode())
        assert rows.fetchone() == (0, 99_999)
        store.run(c.Enqueue([JobSpec("c", "q", "k", rules=under("customer/c"))]))
        assert claim_ids(store, ["q"], 5) == ["c"]
    finally:
        store.close()


@rule("T4", "T5")
def test_a_walk_in_small_parts_grants_the_same(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded at a time is not what decides."""
    monkeypatch.setattr(limited_claim, "MORE", 0)
    monkeypatch.setattr(limited_claim, "MOST", 1)
    store = PostgresStore(postgres_url)
    try:
        set_limit(store, "customer", places=1)
        jobs = [JobSpec(f"j{number}", "q", "k", rules=under(f"customer/{number % 3}")) for number in range(12)]
        store.run(c.Enqueue(jobs))
        for expected in (["j0", "j1", "j2"], ["j3", "j4", "j5"], ["j6", "j7", "j8"]):
            leases = store.claim("w", ["q"], 12)
            assert [lease.job.id for lease in leases] == expected
            assert claim_ids(store, ["q"], 12) == []
            ack_all(store, leases)
    finally:
        store.close()


@rule("T3")
def test_a_freed_place_wakes_who_waits_for_it_in_another_queue(postgres_url: str, only_notified: None) -> None:
    holder, waiter = PostgresStore(postgres_url), PostgresStore(postgres_url)
    try:
        set_limit(holder, "a", places=1)
        holder.run(c.Enqueue([JobSpec("one", "q", "k", rules=under("a")), JobSpec("two", "r", "k", rules=under("a"))]))
        (lease,) = holder.claim("w", ["q"], 1)
        watch = waiter.watch(["r"])
        while not is_listening(waiter):
            time.sleep(0.01)
        assert claim_ids(waiter, ["r"], 1) == []
        assert not watch.wait(0.2)
        ack_all(holder, [lease])
        assert watch.wait(10.0)
        assert claim_ids(waiter, ["r"], 1) == ["two"]
    finally:
        holder.close()
        waiter.close()


@rule("T6")
def test_a_queue_that_another_process_limits_is_claimed_under_the_limit_at_once(postgres_url: str) -> None:
    one, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    try:
        one.run(c.Enqueue([JobSpec(f"j{number}", "q", "k") for number in range(5)]))
        assert claim_ids(one, ["q"], 2) == ["j0", "j1"]
        set_limit(other, "queue:q", places=3)
        assert claim_ids(one, ["q"], 5) == ["j2"]
        assert claim_ids(one, ["q"], 5) == []
        other.clear_limit("queue:q", by="ada", reason="because")
        assert claim_ids(one, ["q"], 5) == ["j3", "j4"]
    finally:
        one.close()
        other.close()


@rule("T1")
def test_what_is_derived_of_limits_is_found_wrong_and_rebuilt(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    store = PostgresStore(postgres_url)
    try:
        set_limit(store, "a", places=1)
        set_limit(store, "queue:q", places=5)
        store.run(c.Enqueue([JobSpec(f"j{number}", "q", "k", rules=under("a")) for number in range(4)]))
        (lease,) = store.claim("w", ["q"], 5)
        assert check(admin, schema) == []
        for broken in ("places", "gates", "lines", "parked"):
            admin.execute(f"delete from {schema}.{broken}".encode())
            assert check(admin, schema) != [], broken
            rebuild(admin, schema)
            assert check(admin, schema) == [], broken
            assert claim_ids(store, ["q"], 5) == []
            assert check(admin, schema) == [], broken
        ack_all(store, [lease])
        assert claim_ids(store, ["q"], 5) == ["j1"]
    finally:
        store.close()


@rule("T10")
def test_a_claim_that_stood_still_leaves_no_burst_behind_its_own(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its grants begin when they are recorded, and the rate is used from then on, not from when they were chosen."""
    with PostgresStore(postgres_url) as store:
        terms = LimitTerms(rate=20, per_us=SECOND, burst=10)
        store.set_limit("api", terms, by="ada", reason="because")
        store.run(c.Enqueue([JobSpec(f"j{number}", "q", "k", rules=under("api")) for number in range(40)]))
        go = LimitWalk.go

        def stand_still(walk: LimitWalk) -> Any:
            chosen = go(walk)
            time.sleep(0.5)
            return chosen

        with monkeypatch.context() as patched:
            patched.setattr(LimitWalk, "go", stand_still)
            first = store.claim("w", ["q"], 40)
        second = store.claim("w", ["q"], 40)
        assert len(first) == 10
        assert too_early_us(sorted(lease.leased_at for lease in (*first, *second)), terms) == 0


@rule("T5", "T10")
@pytest.mark.parametrize("terms", [LimitTerms(rate=20, per_us=SECOND, burst=10), LimitTerms(places=10)])
def test_a_claim_looks_once_for_all_that_a_limit_lets_through(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, terms: LimitTerms
) -> None:
    """Of a line, as many jobs are loaded as may be granted, and none because of those behind a limit that is full."""
    looks: list[LimitWalk] = []
    go = LimitWalk.go

    def counted(walk: LimitWalk) -> Any:
        looks.append(walk)
        return go(walk)

    clock = ManualClock()
    with PostgresStore(postgres_url, clock=clock) as store:
        store.set_limit("api", terms, by="ada", reason="because")
        store.run(c.Enqueue([JobSpec(f"j{number}", "q", "k", rules=under("api")) for number in range(40)]))
        first = store.claim("w", ["q"], 30)
        ack_all(store, first)
        clock.advance(s=1.0)
        monkeypatch.setattr(LimitWalk, "go", counted)
        assert [len(first), len(store.claim("w", ["q"], 30))] == [10, 10]
        assert len(looks) == 1


@rule("T15")
def test_rates_that_are_not_in_use_are_forgotten(
    postgres_url: str, schema: str, admin: psycopg.Connection[Any]
) -> None:
    store = PostgresStore(postgres_url)
    try:
        set_limit(store, "api", rate=1, per_us=1_000)
        store.run(c.Enqueue([JobSpec("j", "q", "k", rules=under("api/x"))]))
        assert claim_ids(store, ["q"], 1) == ["j"]
        forget = store._maintenance.retention.forget_rates
        assert store._thread_driver.run(forget()) == 0
        admin.execute(f"update {schema}.rates set tat = tat - 61000000".encode())
        assert store._thread_driver.run(forget()) == 1
    finally:
        store.close()
