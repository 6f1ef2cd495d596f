"""Rows that others have locked, for as long as it takes: nobody waits for them without need, and no job is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, Policy
from leasemill.store.postgres import admission, retention_loop
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.exact.decide import LockSet, decide
from leasemill.store.postgres.insert import insert_jobs
from leasemill.store.postgres.store import PostgresStore
from leasemill.store.postgres.verbs import commit, enqueue
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.store.postgres.open_transaction import open_transaction

LIMIT_S = 60
SHORT = Policy(lease_ttl_us=SECOND)
Admin = psycopg.Connection[Any]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(postgres_url: str, clock: ManualClock) -> Iterator[PostgresStore]:
    """Whoever waits for a lock gives up soon, and the call fails."""
    with PostgresStore(f"{postgres_url}&lock_timeout_s=0.2", clock=clock) as made:
        yield made


@pytest.fixture
def locking(postgres_url: str, schema: str) -> Callable[..., Any]:
    """Holds what a statement locks, until its block ends."""
    conninfo, _ = parse_url(postgres_url)

    @contextmanager
    def locked(query: str, *values: Any) -> Iterator[None]:
        with psycopg.connect(conninfo) as other:
            other.execute(query.replace("leasemill.", f"{schema}.").encode(), values)
            yield
            other.rollback()

    return locked


def lease_of(job_id: str) -> tuple[str, str]:
    return "select from leasemill.leases where no = (select no from leasemill.jobs where id = %s) for update", job_id


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def claimed(store: PostgresStore, limit: int = 1) -> list[str]:
    return [lease.job.id for lease in store.claim("w", ["q"], limit)]


# Claim ---------------------------------------------------------------------------------------------------------


@rule("L7")
def test_a_claim_returns_what_it_was_granted_whatever_is_locked_beside_it(
    store: PostgresStore, clock: ManualClock, locking: Callable[..., Any]
) -> None:
    """An expired lease, the retention and the admission are in others' hands; retention is due."""
    store.enqueue([JobSpec("old", "q", "k", policy=SHORT)])
    store.claim("dead", ["q"], 1)
    clock.advance(s=2)
    store.enqueue([JobSpec("new", "q", "k")])
    with open_transaction(store) as transaction:
        transaction.run(insert_jobs([JobSpec("arrived", "q", "k", lane="a")], None))
    store._retention_loop._due_at_s -= retention_loop.EVERY_S
    with (
        locking(*lease_of("old")),
        locking("select pg_advisory_xact_lock(%s)", store._known.retention_key),
        locking("select pg_advisory_xact_lock(%s)", store._known.admission_key),
    ):
        assert claimed(store) == ["new"]
    assert [one.job_id for one in store.expire(10)] == ["old"]
    assert sorted(claimed(store, 5)) == ["arrived", "old"]


@rule("C7")
def test_a_claim_skips_a_job_that_another_is_taking(store: PostgresStore, locking: Callable[..., Any]) -> None:
    store.enqueue([JobSpec(one, "q", "k") for one in ("first", "second")])
    with locking("select from leasemill.ready order by seq limit 1 for update"):
        assert claimed(store) == ["second"]
    assert claimed(store) == ["first"]


@rule("L7")
def test_a_locked_lease_keeps_an_idle_worker_from_no_other_that_has_expired(
    store: PostgresStore, clock: ManualClock, locking: Callable[..., Any]
) -> None:
    store.enqueue([JobSpec(one, "q", "k", policy=SHORT) for one in ("longest", "other")])
    store.claim("dead", ["q"], 1)
    clock.advance(us=1)
    store.claim("dead", ["q"], 1)
    clock.advance(s=2)
    with locking(*lease_of("longest")):
        assert claimed(store) == ["other"]
        assert claimed(store) == []
    assert claimed(store) == ["longest"]


@rule("N6")
def test_a_locked_lane_keeps_the_jobs_of_no_other_lane_from_an_idle_worker(
    store: PostgresStore, schema: str, admin: Admin, locking: Callable[..., Any]
) -> None:
    store.enqueue([JobSpec("head", "q", "k", lane="a")])
    (head,) = store.claim("w", ["q"], 1)
    with open_transaction(store) as transaction:
        jobs = [JobSpec("behind", "q", "k", lane="a"), JobSpec("free", "q", "k", lane="b")]
        transaction.run(insert_jobs(jobs, None))
    with locking("select from leasemill.lanes where lane = 'a' for update"):
        assert claimed(store, 5) == ["free"]
    assert claimed(store, 5) == []
    assert store.ack([c.AckReport("head", head.token)]) == [c.Acked("head", c.LaneHint("behind", None))]
    assert claimed(store, 5) == ["behind"]
    assert check(admin, schema) == []


@rule("N3")
def test_a_worker_whose_claims_always_get_something_gets_what_arrives_in_lanes_too(store: PostgresStore) -> None:
    with open_transaction(store) as transaction:
        arrived = [JobSpec("arrived", "q", "k", lane="a", priority=9)]
        transaction.run(enqueue.fix_uses(store._known, {"q"}, arrived))
        transaction.run(insert_jobs(arrived, None))
    seen: list[str] = []

    def busy() -> bool:
        store.enqueue([JobSpec(f"j{len(seen)}", "q", "k")])
        leases = store.claim("w", ["q"], 1)
        assert leases
        seen.extend(lease.job.id for lease in leases)
        return "arrived" in seen

    eventually(busy)


# Expire --------------------------------------------------------------------------------------------------------


@rule("L7")
def test_expire_leaves_what_is_locked_for_the_next_time_and_records_the_others(
    store: PostgresStore, clock: ManualClock, schema: str, admin: Admin, locking: Callable[..., Any]
) -> None:
    jobs = [JobSpec("plain", "q", "k", policy=SHORT), JobSpec("locked", "q", "k", policy=SHORT)]
    jobs += [JobSpec(f"lane-{lane}", "q", "k", lane=lane, policy=SHORT) for lane in "ab"]
    store.enqueue(jobs)
    store.claim("dead", ["q"], 10)
    clock.advance(s=2)
    with locking(*lease_of("locked")), locking("select from leasemill.lanes where lane = 'a' for update"):
        assert sorted(one.job_id for one in store.expire(10)) == ["lane-b", "plain"]
    assert sorted(one.job_id for one in store.expire(10)) == ["lane-a", "locked"]
    assert check(admin, schema) == []


@rule("L7", "O7")
def test_expire_returns_what_it_recorded_while_another_forgets_jobs(
    store: PostgresStore, clock: ManualClock, locking: Callable[..., Any]
) -> None:
    store.enqueue([JobSpec("old", "q", "k", policy=SHORT)])
    store.claim("dead", ["q"], 1)
    clock.advance(s=2)
    store._retention_loop._due_at_s -= retention_loop.EVERY_S
    with locking("select pg_advisory_xact_lock(%s)", store._known.retention_key):
        assert [one.job_id for one in store.expire(10)] == ["old"]


# Extend --------------------------------------------------------------------------------------------------------


@rule("L9")
def test_extend_returns_the_end_a_locked_lease_has_and_extends_the_others(
    store: PostgresStore, clock: ManualClock, locking: Callable[..., Any]
) -> None:
    store.enqueue([JobSpec(one, "q", "k", policy=SHORT) for one in ("free", "locked")])
    leases = {lease.job.id: lease for lease in store.claim("w", ["q"], 2)}
    references = [c.LeaseRef(job_id, lease.token) for job_id, lease in leases.items()]
    clock.advance(us=SECOND // 2)
    until = clock.now() + SECOND
    with locking(*lease_of("locked")):
        extended = {one.job_id: one for one in store.extend(references)}
    assert extended == {
        "free": c.Extended("free", until),
        "locked": c.Extended("locked", leases["locked"].expires_at),
    }
    for job_id, end in (("free", until), ("locked", leases["locked"].expires_at)):
        job = store.job(job_id)
        assert job is not None
        assert job.executions[-1].expires_at == end
    assert store.extend(references) == [c.Extended(one.job_id, until) for one in references]


# Commit --------------------------------------------------------------------------------------------------------


@rule("X6", "N3")
def test_a_commit_with_follow_ups_in_its_own_lane_and_a_cancel_of_its_job_meet_no_deadlock(
    postgres_url: str, schema: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel waits for the lease with the lane locked: the commit must not ask for the lane."""
    with PostgresStore(postgres_url) as store:
        store.enqueue([JobSpec("head", "q", "k", lane="a")])
        (lease,) = store.claim("w", ["q"], 1)
        ended: list[Any] = []
        insert = enqueue.inserted

        def insert_while_the_cancel_waits(*given: Any, **named: Any) -> Any:
            cancelling.start()
            query = "select count(*) from pg_locks where not granted and pid <> pg_backend_pid()"
            eventually(lambda: admin.execute(query.encode()).fetchone() != (0,))
            return insert(*given, **named)

        def cancel() -> None:
            try:
                with open_transaction(store) as transaction:
                    command = c.Cancel(["head"], "ada", "because")
                    ended.extend(transaction.run(decide(store._known, command, LockSet(["head"]))))
            except psycopg.Error as error:
                ended.append(error)

        cancelling = threading.Thread(target=cancel)
        monkeypatch.setattr(commit, "inserted", insert_while_the_cancel_waits)
        command = c.Commit("head", lease.token, b"1", [c.Followup("q", "k", lane="a")])
        outcome = store.run(command)
        cancelling.join(LIMIT_S)
        assert isinstance(outcome, c.Committed)
        assert ended == [c.Cancelled("head", JobState.SUCCEEDED)]  # X5
        assert claimed(store) == list(outcome.followup_ids)
        assert check(admin, schema) == []


# An admission that is under way ---------------------------------------------------------------------------------------


@rule("C1", "N3")
def test_a_claim_that_would_give_nothing_waits_for_an_admission_that_is_under_way(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever admits has the lock; the job is claimable when they are done."""
    monkeypatch.setattr("leasemill.store.postgres.admission.LONGEST_WAIT_MS", 1_000 * LIMIT_S)
    conninfo, _ = parse_url(postgres_url)
    with PostgresStore(f"{postgres_url}&application_name=claiming") as store, psycopg.connect(conninfo) as caller:
        with caller.transaction():
            store.using(caller).enqueue([JobSpec("a", "q", "k", lane="x")])
        claimed: list[c.Lease] = []
        with open_transaction(store) as other:
            assert other.run(admission.admit(store._known))
            claiming = threading.Thread(target=lambda: claimed.extend(store.claim("w", ["q"], 1)))
            claiming.start()
            query = "select count(*) from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
            eventually(lambda: admin.execute(query, ["claiming"]).fetchone() != (0,))
        claiming.join(LIMIT_S)
        assert [lease.job.id for lease in claimed] == ["a"]


@rule("C1", "N3")
def test_a_claim_after_one_that_found_arrivals_gets_them(store: PostgresStore, postgres_url: str) -> None:
    """The first was granted something and returned it at once; the second admits what the first saw."""
    with psycopg.connect(parse_url(postgres_url)[0]) as caller, caller.transaction():
        store.using(caller).enqueue([JobSpec("free", "q", "k"), JobSpec("a", "q", "k", lane="x")])
    assert [lease.job.id for lease in store.claim("w", ["q"], 2)] == ["free"]
    assert [lease.job.id for lease in store.claim("w", ["q"], 2)] == ["a"]


@rule("N3", "N4")
def test_a_decision_about_a_lane_waits_for_an_admission_to_it_that_is_under_way(
    postgres_url: str, schema: str, admin: Admin
) -> None:
    """The next job is admitted, and its transaction still open, when the head is cancelled: whoever read the lane
    before the lock would leave the lane without a head, and the next job behind it for ever."""
    with PostgresStore(postgres_url) as producer, PostgresStore(f"{postgres_url}&application_name=cancelling") as store:
        store.enqueue([JobSpec("head", "q", "k", lane="a")])
        ended: list[c.CancelOutcome] = []
        cancelling = threading.Thread(target=lambda: ended.extend(store.cancel(["head"], by="ada", reason="because")))
        with open_transaction(producer) as transaction:
            transaction.run(insert_jobs([JobSpec("next", "q", "k", lane="a")], None))
            transaction.run(admission.admit(producer._known))
            cancelling.start()
            query = "select count(*) from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
            eventually(lambda: admin.execute(query, ["cancelling"]).fetchone() != (0,))
        cancelling.join(LIMIT_S)
        assert ended == [c.Cancelled("head", JobState.CANCELLED)]
        assert claimed(store) == ["next"]
        assert check(admin, schema) == []
