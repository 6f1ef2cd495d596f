"""What a process finds that opens a folder: what time decided meanwhile is on record before anything is answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, Verb
from leasemill.store.file import batch
from leasemill.store.file.store import FileStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.lab import log_of, open_simulated
from tests.lab.faults import SimulatedMachine

LEASE_S = 30


class Restarted:
    """A folder that was closed while jobs were leased, and opened again when their leases had expired."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = SimulatedMachine()
        self.clock = ManualClock()
        self.leases: dict[str, c.Lease] = {}

    def leave(self, *job_ids: str) -> None:
        with self.opened() as store:
            store.enqueue([JobSpec(job_id, "q", "k") for job_id in job_ids])
            self.leases = {lease.job.id: lease for lease in store.claim("worker", ["q"], 100)}
            if "committed" in self.leases:
                store.commit("committed", self.leases["committed"].token, result=b"1")
        self.clock.advance(s=LEASE_S)

    def opened(self) -> FileStore:
        return open_simulated(self.machine, self.folder, self.clock)


@pytest.fixture
def restarted(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path)


READINGS: dict[str, Callable[[FileStore], object]] = {
    "job": lambda store: getattr(store.job("leased"), "state", None) is JobState.READY,
    "jobs": lambda store: (
        [job.spec.id for job in store.jobs(c.JobFilter(states=frozenset({JobState.READY}))).jobs] == ["leased"]
    ),
    "queues": lambda store: store.queues()[0].counts[JobState.READY] == 1,
    "totals": lambda store: store.totals().next_expiry_at is None,
    "due_in": lambda store: store.due_in(["q"]) == 0,
}


@rule("W15", "L3")
@pytest.mark.parametrize("name", READINGS)
def test_a_lease_that_expired_meanwhile_is_over_before_the_first_reading(restarted: Restarted, name: str) -> None:
    """004: after a restart, leases are expired by the current time before requests are accepted."""
    restarted.leave("leased")
    with restarted.opened() as store:
        assert READINGS[name](store)
    with restarted.opened() as store:
        job = store.job("leased")
        assert job is not None
        assert job.executions[0].ended_by is Verb.EXPIRE
        assert job.executions[0].finished_at == restarted.clock.now()


@rule("W15", "X5")
def test_a_job_that_had_committed_is_finished_by_it(restarted: Restarted) -> None:
    restarted.leave("committed")
    with restarted.opened() as store:
        job = store.job("committed")
        assert job is not None
        assert (job.state, job.result) == (JobState.SUCCEEDED, b"1")


@rule("W15", "L2", "L6")
def test_reports_that_come_after_it_are_answered_as_after_any_expiry(restarted: Restarted) -> None:
    restarted.leave("leased", "committed")
    tokens = {job_id: lease.token for job_id, lease in restarted.leases.items()}
    with restarted.opened() as store:
        lost, done = store.ack([c.AckReport(job_id, tokens[job_id]) for job_id in ("leased", "committed")])
        assert isinstance(lost, c.Lost)
        assert isinstance(done, c.Acked)


@rule("W15", "L7")
def test_expire_as_the_first_call_reports_what_it_records(restarted: Restarted) -> None:
    restarted.leave("one", "two", "three")
    with restarted.opened() as store:
        assert len(store.expire(limit=2)) == 2
        assert store.totals().counts[JobState.READY] == 3


@rule("W15")
def test_however_many_there_are_all_are_recorded(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "EXPIRE_BATCH", 2)
    restarted.leave(*(f"j-{number}" for number in range(5)))
    with restarted.opened() as store:
        assert store.totals().counts[JobState.READY] == 5


@rule("W15")
def test_a_reader_that_finds_none_writes_nothing(restarted: Restarted) -> None:
    restarted.leave("leased")
    restarted.clock.advance(us=-SECOND)
    before = dict(restarted.machine.operations)
    with restarted.opened() as store:
        job = store.job("leased")
        assert job is not None
        assert job.state is JobState.LEASED
        restarted.clock.advance(s=1)
        assert store.totals().counts[JobState.LEASED] == 1, "a process that is open leaves it to the verbs"
    assert {operation.value for operation in restarted.machine.operations if operation not in before} <= {"sync"}
    assert all(restarted.machine.operations[one] == count for one, count in before.items() if one.value != "sync")


@rule("W9", "W15")
def test_a_process_that_appends_unread_leaves_it_to_its_first_reading(restarted: Restarted) -> None:
    restarted.leave("leased")
    with restarted.opened() as store:
        store.run(c.Enqueue([JobSpec("new", "q", "k")], are_new=True))
        assert store._replica.state is None
        assert store.totals().counts[JobState.READY] == 2


@rule("W7", "W15")
def test_without_room_to_record_it_readings_are_still_answered(restarted: Restarted) -> None:
    restarted.leave(*(f"j-{number}" for number in range(8)))
    restarted.machine.fill_at(1)
    with restarted.opened() as store:
        log_of(store).space.prepare_spare()
        assert store.totals().counts[JobState.LEASED] == 8
        restarted.machine.make_room()
        log_of(store).space.prepare_spare()
        assert store.totals().counts[JobState.READY] == 8
