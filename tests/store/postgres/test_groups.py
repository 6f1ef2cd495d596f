"""Groups under many connections, in transactions of users, and across connections that end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from leasemill.errors import GroupRefused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ChainedJob, JobSpec, JobState, Rules
from leasemill.store.postgres.admin.check import check
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.postgres.exact import decide as exact
from leasemill.store.postgres.steps import Steps
from leasemill.store.postgres.store import PostgresStore
from leasemill.testing.rules import rule
from tests.store.postgres.open_transaction import end_open_transactions

MEMBER = Rules(group="group")
THEN = ChainedJob("callbacks", "then")
ON_END = ChainedJob("callbacks", "end")
Admin = psycopg.Connection[Any]


def together(*works: Callable[[], None]) -> None:
    """Run at once; an error of any of them is raised when all have ended."""
    with ThreadPoolExecutor(len(works)) as executor:
        running = [executor.submit(work) for work in works]
    for one in running:
        one.result()


def view(store: PostgresStore, group_id: str = "group") -> c.GroupView:
    found = store.group(group_id)
    assert found is not None
    return found


def callbacks(store: PostgresStore) -> list[str]:
    return sorted(job.spec.id for job in store.jobs(c.JobFilter(queue="callbacks"), limit=1_000).jobs)


def connected(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(parse_url(url)[0])


def end_with(barrier: threading.Barrier, store: PostgresStore, lease: c.Lease) -> None:
    barrier.wait()
    store.ack([c.AckReport(lease.job.id, lease.token)])


@rule("B2")
def test_two_last_members_that_end_at_once_call_back_once(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as one, PostgresStore(postgres_url) as other:
        for number in range(30):
            group = f"g{number}"
            one.create_group(group, then=THEN, on_end=ON_END)
            one.enqueue([JobSpec(f"{group}-{part}", "q", "k", rules=Rules(group=group)) for part in "ab"])
            one.seal_group(group)
            (first,), (second,) = one.claim("w1", ["q"], 1), other.claim("w2", ["q"], 1)
            barrier = threading.Barrier(2)
            together(partial(end_with, barrier, one, first), partial(end_with, barrier, other, second))
            assert view(one, group).succeeded == 2
        assert len(callbacks(one)) == 60
        assert all(group.is_over for group in one.groups())


class Crowd:
    """Producers, workers and an operator on the groups `x` and `y`, which are in `outer`."""

    CHAIN = (ChainedJob("q", "k", lane="lane"),)

    def __init__(self, url: str, store: PostgresStore) -> None:
        self.url, self.store = url, store
        self.stop = threading.Event()
        store.create_group("outer", then=THEN, on_end=ON_END)
        for name in ("x", "y"):
            store.create_group(name, then=THEN, on_end=ON_END, parent="outer")
        store.seal_group("outer")

    def produce(self, seed: int) -> None:
        source = random.Random(seed)
        with PostgresStore(self.url) as store:
            for number in range(40):
                jobs = [self._job(source, f"{seed}-{number}-{part}") for part in range(3)]
                if number % 2:
                    store.enqueue(jobs)
                else:
                    with connected(self.url) as connection:
                        store.using(connection).enqueue(jobs)

    def _job(self, source: random.Random, job_id: str) -> JobSpec:
        rules = Rules(group=source.choice("xy"), chain=source.choice(((), (), self.CHAIN)))
        return JobSpec(job_id, "q", "k", lane=source.choice((None, None, "lane")), rules=rules)

    def work(self, seed: int) -> None:
        source = random.Random(seed)
        with PostgresStore(self.url) as store:
            while not self.stop.is_set():
                leases = store.claim(f"w{seed}", ["q"], source.randint(1, 8))
                failed = [one for one in leases if source.random() < 0.1]
                store.ack([c.AckReport(one.job.id, one.token) for one in leases if one not in failed])
                store.nack([c.NackReport(one.job.id, one.token, "no", is_permanent=True) for one in failed])

    def operate(self) -> None:
        with PostgresStore(self.url) as store:
            while not self.stop.is_set():
                store.redrive(c.JobFilter(group=random.choice("xy")), by="ada", reason="again", limit=5)
                time.sleep(0.01)

    def lead(self) -> None:
        """Until all is over, or a minute has passed."""
        store, until = self.store, time.monotonic() + 60
        try:
            together(partial(self.produce, 1), partial(self.produce, 2))
            for name in ("x", "y"):
                store.seal_group(name)
            while view(store, "outer").succeeded < 6 and time.monotonic() < until:
                for lease in store.claim("callbacks", ["callbacks"], 10):
                    store.ack([c.AckReport(lease.job.id, lease.token)])
                time.sleep(0.02)
        finally:
            self.stop.set()

    def run(self) -> None:
        together(self.lead, self.operate, *(partial(self.work, seed) for seed in (3, 4, 5)))


@rule("B1", "B2", "B4", "B6", "B7")
def test_members_that_come_end_fail_and_are_redriven_at_once_are_counted_once(
    postgres_url: str, schema: str, admin: Admin
) -> None:
    """Also groups in groups and chains; no deadlock reaches a caller."""
    with PostgresStore(postgres_url) as store:
        Crowd(postgres_url, store).run()
        members = [job for job in store.jobs(limit=10_000).jobs if job.spec.queue == "q"]
        assert len(members) >= 240
        for name in ("x", "y"):
            own = [job for job in members if job.spec.rules is not None and job.spec.rules.group == name]
            one = view(store, name)
            assert all(job.state is JobState.SUCCEEDED for job in own)
            assert (one.total, one.succeeded, one.unfinished, one.is_over) == (len(own), len(own), 0, True)
        outer = view(store, "outer")
        assert (outer.total, outer.succeeded, outer.is_over) == (6, 6, True)  # two groups, and their callbacks
        assert callbacks(store) == ["outer/end", "outer/then", "x/end", "x/then", "y/end", "y/then"]
        assert check(admin, schema) == []


@rule("B1")
def test_a_transaction_that_is_rolled_back_has_added_no_members(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN)
        store.enqueue([JobSpec("first", "q", "k", rules=MEMBER)])
        with connected(postgres_url) as connection:
            store.using(connection).enqueue([JobSpec(f"half-{number}", "q", "k", rules=MEMBER) for number in range(5)])
            assert view(store).total == 1
            connection.rollback()
            store.using(connection).enqueue([JobSpec("second", "q", "k", rules=MEMBER)])
        assert store.seal_group("group").total == 2


@rule("B1", "B3")
def test_a_seal_waits_for_members_that_are_being_added_and_ends_do_not(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN)
        store.enqueue([JobSpec("first", "q", "k", rules=MEMBER)])
        (lease,) = store.claim("w", ["q"], 1)
        with connected(postgres_url) as connection:
            store.using(connection).enqueue([JobSpec("second", "q", "k", rules=MEMBER)])
            sealing = threading.Thread(target=store.seal_group, args=("group",))
            sealing.start()
            time.sleep(0.2)
            assert view(store).sealed_at is None
            store.enqueue([JobSpec("third", "q", "k", rules=MEMBER)])
            connection.commit()
            sealing.join(10)
        store.ack([c.AckReport("first", lease.token)])
        assert (view(store).total, view(store).unfinished) == (3, 2)


@rule("B2")
def test_an_end_waits_for_no_transaction_that_adds_members(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN)
        store.enqueue([JobSpec("first", "q", "k", rules=MEMBER)])
        (lease,) = store.claim("w", ["q"], 1)
        with connected(postgres_url) as connection:
            store.using(connection).enqueue([JobSpec("second", "q", "k", rules=MEMBER)])
            store.ack([c.AckReport("first", lease.token)])  # returns
            assert view(store).succeeded == 1


@rule("B1")
def test_a_group_that_takes_no_members_refuses_all_of_a_users_batch(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group")
        store.seal_group("group")
        with connected(postgres_url) as connection:
            with pytest.raises(GroupRefused, match="is sealed"):
                store.using(connection).enqueue([JobSpec("plain", "q", "k"), JobSpec("member", "q", "k", rules=MEMBER)])
            connection.commit()
        assert store.jobs().jobs == ()
        autocommit = psycopg.connect(parse_url(postgres_url)[0], autocommit=True)
        with autocommit, pytest.raises(GroupRefused, match="not known"):
            store.using(autocommit).enqueue(
                [JobSpec("plain", "q", "k"), JobSpec("x", "q", "k", rules=Rules(group="no"))]
            )
        assert store.jobs().jobs == ()


@rule("B5", "X6")
def test_a_block_adds_members_with_the_users_writes_or_neither(postgres_url: str) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN)
        store.create_group("other")
        store.enqueue([JobSpec("first", "q", "k", rules=MEMBER)])
        for group in ("group", "other"):
            store.seal_group(group)
        (lease,) = store.claim("w", ["q"], 1)
        block = store.block(lease, 10.0)
        assert block.begin() is None
        refused = c.Commit("first", lease.token, None, [c.Followup("q", "k", rules=Rules(group="other"))])
        with pytest.raises(GroupRefused, match="'other' is sealed"):
            block.commit(refused)
        block = store.block(lease, 10.0)
        assert block.begin() is None
        added = c.Commit("first", lease.token, None, [c.Followup("q", "k", rules=MEMBER)] * 2)
        assert isinstance(block.commit(added), c.Committed)
        store.ack([c.AckReport("first", lease.token)])
        assert (view(store).total, view(store).unfinished, callbacks(store)) == (3, 2, [])


@rule("B2", "B6")
@pytest.mark.parametrize("when", ["before it is written", "before its jobs are inserted", "after all is written"])
def test_an_end_and_what_it_causes_are_one_fact(
    postgres_url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The connection ends at every point of the transaction: nothing of it has happened, and the call is repeated."""
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN, on_end=ON_END)
        store.enqueue([JobSpec("first", "q", "k", rules=Rules(group="group", chain=(ChainedJob("q", "next"),)))])
        store.seal_group("group")
        (lease,) = store.claim("w", ["q"], 1)
        seen: list[tuple[int, int]] = []
        save, insert = exact._save, vars(exact)["insert_caused"]

        def end_session() -> None:
            if not seen:
                seen.append((view(store).succeeded, len(store.jobs().jobs)))
                end_open_transactions(admin)

        def saved(*given: Any) -> Steps[Any]:
            if when == "before it is written":
                end_session()
            return (yield from save(*given))

        def inserted(*given: Any) -> Steps[Any]:
            if when == "before its jobs are inserted":
                end_session()
            outcomes = yield from insert(*given)
            if when == "after all is written":
                end_session()
            return outcomes

        monkeypatch.setattr(exact, "_save", saved)
        monkeypatch.setattr(exact, "insert_caused", inserted)
        assert store.ack([c.AckReport("first", lease.token)]) == [c.Acked("first")]
        assert seen == [(0, 1)]
        assert (view(store).total, view(store).succeeded, callbacks(store)) == (2, 1, [])
        (link,) = store.claim("w", ["q"], 1)
        store.ack([c.AckReport(link.job.id, link.token)])
        assert callbacks(store) == ["group/end", "group/then"]


@rule("E5", "B6")
def test_a_job_that_is_there_is_left_as_it_is(postgres_url: str, schema: str, admin: Admin) -> None:
    """Somebody has used the ids of a chain and of a callback for jobs of their own."""
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN, on_end=ON_END)
        store.enqueue([JobSpec("job", "q", "k", rules=Rules(group="group", chain=(ChainedJob("q", "next"),)))])
        store.seal_group("group")
        store.enqueue([JobSpec("job/then", "mine", "k"), JobSpec("group/end", "mine", "k")])
        (lease,) = store.claim("w", ["q"], 1)
        assert store.ack([c.AckReport("job", lease.token)]) == [c.Acked("job")]
        assert (view(store).total, view(store).is_over, callbacks(store)) == (1, True, ["group/then"])
        assert len(store.jobs(c.JobFilter(queue="mine")).jobs) == 2
        assert check(admin, schema) == []


@rule("B1")
def test_many_additions_are_counted_in_one_place(postgres_url: str, schema: str, admin: Admin) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN)
        for number in range(150):
            store.enqueue([JobSpec(f"job-{number}", "q", "k", rules=MEMBER)])
        assert view(store).total == 150
        store._thread_driver.run(store._maintenance.retention.fold_groups())
        joins = f"select count(*) from {schema}.group_joins".encode()
        assert admin.execute(joins).fetchone() == (0,)
        leases = store.claim("w", ["q"], 150)
        store.ack([c.AckReport(one.job.id, one.token) for one in leases[:1]])
        assert (view(store).total, view(store).unfinished) == (150, 149)
        store.enqueue([JobSpec("one more", "q", "k", rules=MEMBER)])
        assert store.seal_group("group").total == 151
        assert admin.execute(joins).fetchone() == (0,)


@rule("B1")
def test_a_count_that_is_wrong_is_found(postgres_url: str, schema: str, admin: Admin) -> None:
    with PostgresStore(postgres_url) as store:
        store.create_group("group", then=THEN)
        store.enqueue([JobSpec("first", "q", "k", rules=MEMBER), JobSpec("second", "q", "k", rules=MEMBER)])
        assert check(admin, schema) == []
        admin.execute(f"update {schema}.groups set succeeded = 1".encode())
        assert check(admin, schema) == ["group group counts 1 unfinished, there are 2"]
