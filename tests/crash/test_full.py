"""No space left: refused before anything is decided, leases finish in the reserve, and with room it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState
from leasemill.testing.rules import rule
from tests.crash import simulations
from tests.crash.lab import log_of, open_simulated, snapshot
from tests.lab.faults import SimulatedMachine


@pytest.fixture(autouse=True)
def _looks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.store.wal.space.SPARE_RETRY_S", 0.0)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


@rule("W7")
def test_without_room_for_a_segment_enqueue_is_refused_everywhere_and_leases_finish(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store, other = open_simulated(machine, tmp_path), open_simulated(machine, tmp_path)
    store.enqueue([job(f"j-{number}") for number in range(20)])
    leases = store.claim("worker", ["q"], 3)
    machine.fill_at(1)
    log_of(store).space.prepare_spare()
    third = open_simulated(machine, tmp_path)
    for one in (store, other, third):
        with pytest.raises(
            Unavailable, match=r"no space left for .* free [0-9]+ MB or more; then purging finished jobs"
        ):
            one.enqueue([job("no")])
        with pytest.raises(Unavailable, match="no space left"):
            one.acquire([c.AcquireRequest("offsets", "lane", 1, "worker", "token")])
    with pytest.raises(Unavailable, match="no space left"):
        open_simulated(machine, tmp_path).run(c.Enqueue([job("no")], are_new=True))
    reports = [c.AckReport(lease.job.id, lease.token) for lease in leases]
    assert other.ack(reports) == [c.Acked(lease.job.id) for lease in leases]
    assert third.purge(c.JobFilter(), by="ada", reason="room", limit=10).job_ids
    machine.make_room()
    assert other.enqueue([job("yes")]) == [c.Enqueued("yes")]
    assert store.totals().counts[JobState.READY] == 18


@rule("W7")
def test_claims_stop_while_there_is_still_room_to_finish_what_runs(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store = open_simulated(machine, tmp_path)
    store.enqueue([job(f"j-{number}") for number in range(20)])
    machine.fill_at(1)
    log_of(store).space.prepare_spare()
    leases: list[c.Lease] = []

    def claim_all() -> None:
        while True:
            leases.extend(store.claim("worker", ["q"], 1))

    with pytest.raises(Unavailable, match="no space left"):
        claim_all()
    assert 0 < len(leases) < 20
    for lease in leases:
        assert store.ack([c.AckReport(lease.job.id, lease.token)]) == [c.Acked(lease.job.id)]
    machine.make_room()
    assert store.claim("worker", ["q"], 1)


@rule("W7")
def test_a_disk_full_to_the_last_block_seals_nothing(tmp_path: Path) -> None:
    """The spare is there, and no room for a manifest: what is left of the segment still serves."""
    machine = SimulatedMachine()
    store = open_simulated(machine, tmp_path)
    store.enqueue([job(f"j-{number}") for number in range(40)])
    (lease,) = store.claim("worker", ["q"], 1)
    log_of(store).space.prepare_spare()
    machine.fill_at(1)
    with pytest.raises(Unavailable, match="no space left"):
        store.enqueue([job(f"too-many-{number}") for number in range(100)])
    assert store.ack([c.AckReport(lease.job.id, lease.token)]) == [c.Acked(lease.job.id)]
    assert store.job("too-many-0") is None
    machine.make_room()
    assert len(store.enqueue([job(f"too-many-{number}") for number in range(100)])) == 100
    assert "spare" not in machine.files()


@rule("W7", "W8")
def test_a_snapshot_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path) as store:
        for number in range(100):
            store.enqueue([job(f"j-{number}")])
    before = sorted(machine.files())
    for step in range(1, 4):
        machine.fill_at(step)
        with pytest.raises(OSError, match="No space left"):
            snapshot(machine, tmp_path)
        machine.make_room()
        assert sorted(machine.files()) == before
    assert snapshot(machine, tmp_path) is not None


@rule("W7")
@pytest.mark.parametrize("count", range(1, 30, 4))
def test_space_may_end_at_any_step(tmp_path: Path, count: int) -> None:
    simulations.fill_at(count, tmp_path, count)
