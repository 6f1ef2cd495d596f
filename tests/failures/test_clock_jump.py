"""The clock jump: somebody sets the machine's clock, or the network does, while jobs are held.

Guard: leases are timed by a clock that is not stepped with the wall's (L8, W10).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.commands import Acked
from leasemill.kernel.model import SECOND, JobSpec, JobState
from leasemill.store.file.store import FileStore
from leasemill.testing.conformance.steps import expect
from leasemill.testing.rules import rule
from tests.crash.lab import open_simulated
from tests.lab.faults import SimulatedMachine

HOUR_US = 3_600 * SECOND
LEASE_US = 30 * SECOND


class WallClock:
    """What a store without the guard would ask."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    def now(self) -> int:
        return self._machine.wall_us()


def opened(machine: SimulatedMachine, folder: Path, *, guarded: bool) -> FileStore:
    return open_simulated(machine, folder, None if guarded else WallClock(machine))


def claimed(store: FileStore) -> c.Lease:
    store.enqueue([JobSpec("job", "work", "kind")])
    (lease,) = store.claim("a", ["work"], 1)
    return lease


def holders_after_a_step_forward(folder: Path, *, guarded: bool) -> list[str]:
    """A second into A's lease the wall clock is set an hour ahead. Who else gets the job?"""
    machine = SimulatedMachine()
    with opened(machine, folder, guarded=guarded) as store:
        claimed(store)
        machine.advance(SECOND)
        machine.wall_us_now += HOUR_US
        return ["a", *(lease.worker for lease in store.claim("b", ["work"], 1))]


def late_report_after_a_step_back(folder: Path, *, guarded: bool) -> object:
    """A's lease runs out; the wall clock is set back an hour; A reports as if nothing had happened."""
    machine = SimulatedMachine()
    with opened(machine, folder, guarded=guarded) as store:
        lease = claimed(store)
        machine.advance(LEASE_US + SECOND)
        machine.wall_us_now -= HOUR_US
        return store.ack([c.AckReport("job", lease.token)])[0]


def waits_after_a_step_back(folder: Path, *, guarded: bool) -> int:
    """A job is due in a second; the wall clock is set back an hour. How long does it wait, in seconds?"""
    machine = SimulatedMachine()
    with opened(machine, folder, guarded=guarded) as store:
        store.enqueue([JobSpec("job", "work", "kind", delay_us=SECOND)])
        machine.wall_us_now -= HOUR_US
        return (store.due_in(["work"]) or 0) // SECOND


def test_reproduce_by_the_wall_clock_a_step_forward_takes_a_job_from_a_worker_that_is_alive(tmp_path: Path) -> None:
    assert holders_after_a_step_forward(tmp_path, guarded=False) == ["a", "b"], "C7: in two hands"


def test_reproduce_by_the_wall_clock_a_step_back_revives_a_lease_and_freezes_what_waits(tmp_path: Path) -> None:
    assert isinstance(late_report_after_a_step_back(tmp_path, guarded=False), Acked), "L3: time did not revoke it"
    assert waits_after_a_step_back(tmp_path, guarded=False) > 3_000


@rule("L8", "C7")
def test_prevent_by_the_stores_clock_a_step_forward_takes_nothing(tmp_path: Path) -> None:
    assert holders_after_a_step_forward(tmp_path, guarded=True) == ["a"]


@rule("L8", "L3")
def test_prevent_by_the_stores_clock_a_step_back_revives_nothing_and_freezes_nothing(tmp_path: Path) -> None:
    expect(c.Lost, late_report_after_a_step_back(tmp_path, guarded=True))
    assert waits_after_a_step_back(tmp_path, guarded=True) <= 1


@rule("W10")
@pytest.mark.parametrize("step_us", [-HOUR_US, HOUR_US])
def test_recover_a_machine_that_wakes_up_with_another_time_goes_on(tmp_path: Path, step_us: int) -> None:
    """The clock may have been set while the machine was down: it never goes back behind what was recorded."""
    machine = SimulatedMachine()
    with opened(machine, tmp_path, guarded=True) as store:
        lease = claimed(store)
        machine.advance(LEASE_US + SECOND)
        store.expire()
    machine = machine.copy(reboots=True)
    machine.wall_us_now += step_us
    with opened(machine, tmp_path, guarded=True) as store:
        expect(c.Lost, store.ack([c.AckReport("job", lease.token)])[0])
        (again,) = store.claim("b", ["work"], 1)
        assert again.leased_at >= lease.expires_at
        expect(c.Acked, store.ack([c.AckReport("job", again.token)])[0])
        job = store.job("job")
        assert job is not None
        assert job.state is JobState.SUCCEEDED
