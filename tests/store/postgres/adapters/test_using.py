"""`job.using(x)` for sessions and connections of SQLAlchemy and asyncpg: jobs come and go with their transactions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasemill import App, JobState, JobType
from leasemill.errors import JobConflict, QueueRefused, Refused
from leasemill.kernel import commands as c
from leasemill.testing.rules import rule
from tests.store.postgres.adapters.subjects import SUBJECTS, Subject
from tests.store.postgres.committing import Connection, cents
from tests.store.postgres.listening import has_succeeded, is_listening
from tests.worker.support import until, working

Note = JobType[[int], int]


def claimed(app: App, queue: str = "notes") -> list[str]:
    return [lease.job.id for lease in app.store.claim("w", [queue], 100)]


async def test_a_job_is_claimable_when_the_caller_has_committed_and_not_before(
    app: App, note: Note, bank: Connection, subject: Subject
) -> None:
    """The job is the first statement of its transaction: a driver that begins late has to begin with it."""
    await subject.begin()
    handle = await subject.enqueue(note, 1)
    await subject.deposit(5)
    assert (claimed(app), cents(bank)) == ([], 0)
    await subject.commit()
    assert handle.status() is JobState.READY
    assert (claimed(app), cents(bank)) == ([handle.id], 5)


async def test_a_rollback_leaves_nothing(app: App, note: Note, bank: Connection, subject: Subject, schema: str) -> None:
    await subject.begin()
    await subject.enqueue(note.options(job_id="gone"), 1)
    await subject.deposit(5)
    await subject.enqueue_many(note, [note.call(number) for number in range(5)])
    await subject.rollback()
    for table in ("jobs", "ready", "arrivals"):
        assert bank.execute(f"select count(*) from {schema}.{table}".encode()).fetchone() == (0,)
    assert cents(bank) == 0
    assert note.options(job_id="gone").enqueue(2).is_duplicate is False


async def test_a_rolled_back_savepoint_takes_its_jobs_with_it(app: App, note: Note, subject: Subject) -> None:
    await subject.begin()
    kept = await subject.enqueue(note, 1)
    with pytest.raises(ValueError, match="not after all"):
        async with subject.savepoint():
            await subject.enqueue(note, 2)
            raise ValueError("not after all")
    async with subject.savepoint():
        kept_too = await subject.enqueue(note, 3)
    await subject.commit()
    assert sorted(claimed(app)) == sorted([kept.id, kept_too.id])


@rule("E2", "E4")
async def test_duplicates_and_conflicts_leave_the_transaction_as_it_was(
    app: App, note: Note, bank: Connection, subject: Subject
) -> None:
    note.options(job_id="one").enqueue(1)
    await subject.begin()
    await subject.deposit(5)
    assert (await subject.enqueue(note.options(job_id="one"), 1)).is_duplicate
    assert not (await subject.enqueue(note.options(job_id="two"), 2)).is_duplicate
    assert (await subject.enqueue(note.options(job_id="two"), 2)).is_duplicate
    with pytest.raises(JobConflict):
        await subject.enqueue(note.options(job_id="one"), 7)
    await subject.commit()
    assert cents(bank) == 5
    assert sorted(claimed(app)) == ["one", "two"]


@rule("E6")
async def test_a_batch_answers_item_by_item(note: Note, subject: Subject) -> None:
    await subject.begin()
    calls = [note.options(job_id="x").call(1), note.options(job_id="x").call(1), note.call(2)]
    handles = await subject.enqueue_many(note, calls)
    assert [type(handle.outcome) for handle in handles] == [c.Enqueued, c.Duplicate, c.Enqueued]
    await subject.rollback()


async def test_everything_a_job_can_have_arrives(app: App, subject: Subject) -> None:
    """Text in many alphabets, lanes, priorities, delays, policies, keys, percent signs and quotes."""

    @app.job(queue="odd", lane="lane", retry=2, timeout=7, unique=True)
    async def odd(lane: str, value: dict[str, Any]) -> None: ...

    value = {"100%": "%s %(x)s $1 :y ::text 'quoted' \"too\" \\ {}", "ünï": "日本語 🎈", "n": [None, 1.5, True]}
    await subject.begin()
    first = await subject.enqueue(odd.options(priority=9, job_id="a'b%s"), "lane % one", value)
    again = await subject.enqueue(odd, "lane % one", value)
    later = await subject.enqueue(odd.options(delay=3600), "other", {})
    await subject.commit()
    assert again.id == first.id
    (lease,) = app.store.claim("w", ["odd"], 10)
    assert (lease.job.id, lease.job.lane, lease.job.priority) == ("a'b%s", "lane % one", 9)
    assert json.loads(lease.job.payload)["value"] == value
    assert later.status() is JobState.READY


@rule("U1")
async def test_unique_keys_and_groups_join_the_transaction_too(app: App, note: Note, subject: Subject) -> None:
    @app.job(queue="once", unique=True)
    async def once(number: int) -> None: ...

    with app.group("all") as group:
        pass
    assert group is not None
    await subject.begin()
    first = await subject.enqueue(once, 1)
    assert (await subject.enqueue(once, 1)).id == first.id
    assert (await subject.enqueue(once, 2)).id != first.id
    await subject.rollback()
    fresh = once.enqueue(1)
    assert fresh.id != first.id
    assert isinstance(fresh.outcome, c.Enqueued)


@rule("I7")
async def test_a_queue_of_acquire_takes_no_job_in_a_transaction_either(app: App, note: Note, subject: Subject) -> None:
    app.store.acquire([c.AcquireRequest("notes", "d", 1, "w", "t")])
    await subject.begin()
    with pytest.raises(QueueRefused, match="used with acquire"):
        await subject.enqueue(note, 1)
    await subject.rollback()


async def test_in_a_failed_transaction_the_error_is_the_drivers(note: Note, subject: Subject) -> None:
    await subject.begin()
    with pytest.raises(subject.errors, match="nothing_of_this_name"):
        await subject.execute("select * from nothing_of_this_name")
    with pytest.raises(subject.errors, match="current transaction is aborted"):
        await subject.enqueue(note, 1)
    await subject.rollback()
    await subject.begin()
    handle = await subject.enqueue(note, 1)
    await subject.commit()
    assert handle.status() is JobState.READY


async def test_a_lost_connection_is_the_callers_error_and_is_not_repeated(
    app: App, note: Note, subject: Subject, bank: Connection
) -> None:
    await subject.begin()
    await subject.enqueue(note, 1)
    bank.execute("select pg_terminate_backend(%s)", [await subject.pid()])
    with pytest.raises(subject.losses):
        await subject.enqueue(note, 2)
    assert claimed(app) == []


@pytest.mark.usefixtures("only_notified")
async def test_a_worker_is_woken_by_the_callers_commit(app: App, note: Note, subject: Subject) -> None:
    async with working(app, queues=["notes"]):
        await until(lambda: is_listening(app.store))
        await subject.begin()
        handle = await subject.enqueue(note, 4)
        await subject.commit()
        await until(lambda: has_succeeded(handle))


@pytest.mark.parametrize("name", SUBJECTS)
async def test_a_connection_to_another_database_is_refused(
    note: Note, server_url: str, admin: Connection, name: str
) -> None:
    admin.execute("drop database if exists elsewhere with (force)")
    admin.execute("create database elsewhere")
    try:
        async with SUBJECTS[name](server_url.replace("/postgres", "/elsewhere")) as subject:
            await subject.begin()
            with pytest.raises(Refused, match="the store's own database"):
                await subject.enqueue(note, 1)
            await subject.rollback()
    finally:
        admin.execute("drop database elsewhere with (force)")
