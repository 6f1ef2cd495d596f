"""No space left: refused before anything is decided, leases finish in the reserve, and with room it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, JobState, LimitTerms
from leasemill.store.file.store import FileStore
from leasemill.store.file.tickets import LogTicket
from leasemill.testing.rules import rule
from tests.crash import simulations
from tests.crash.lab import log_of, open_simulated, snapshot
from tests.crash.scene import prepare_room
from tests.lab.faults import SimulatedMachine


@pytest.fixture(autouse=True)
def _looks_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.store.file.space.SPARE_RETRY_S", 0.0)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


def running_on_a_full_disk(
    machine: SimulatedMachine, folder: Path, *, ended: int = 0
) -> tuple[FileStore, list[c.Lease]]:
    """A folder with its reserves, jobs that run, and then not a byte more."""
    store = open_simulated(machine, folder)
    for number in range(ended):
        store.enqueue([job(f"ended-{number}")])
        (lease,) = store.claim("worker", ["q"], 1)
        store.ack([c.AckReport(lease.job.id, lease.token)])
    store.enqueue([job(f"j-{number}") for number in range(30)])
    leases = store.claim("worker", ["q"], 30)
    prepare_room(store)
    machine.fill()
    return store, leases


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
        with pytest.raises(Unavailable, match=r"no space left for .* free [0-9]+ MB or more, or purge finished jobs"):
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
    prepare_room(store)
    machine.fill()
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
        with pytest.raises(Unavailable, match=r"no space left for a snapshot of .* free [0-9]+ MB or more"):
            snapshot(machine, tmp_path)
        machine.make_room()
        assert sorted(machine.files()) == before
    assert snapshot(machine, tmp_path) is not None


@rule("W7")
@pytest.mark.parametrize("count", range(1, 30, 4))
def test_space_may_end_at_any_step(tmp_path: Path, count: int) -> None:
    simulations.fill_at(count, tmp_path, count)


@rule("W7")
def test_reports_with_results_go_on_when_a_segment_ends_on_a_full_disk(tmp_path: Path) -> None:
    """Into the spare, and from there into the reserve, which is as large as a segment."""
    machine = SimulatedMachine()
    store, leases = running_on_a_full_disk(machine, tmp_path)
    result = b'"%s"' % (b"r" * 220)
    for lease in leases:
        assert store.ack([c.AckReport(lease.job.id, lease.token, result)]) == [c.Acked(lease.job.id)]
    segments = [name for name in machine.files() if name.startswith("segment-")]
    assert len(segments) >= 4, "the jobs, the spare, and what the reserve was given up for"
    assert open_simulated(machine.copy(), tmp_path).totals().counts[JobState.SUCCEEDED] == 30


@rule("W7")
def test_a_report_beyond_the_reserve_is_refused_and_accepted_when_there_is_room(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store, leases = running_on_a_full_disk(machine, tmp_path)
    result = b'"%s"' % (b"r" * 1_000)
    acked = 0

    def ack_all() -> None:
        nonlocal acked
        for lease in leases:
            store.ack([c.AckReport(lease.job.id, lease.token, result)])
            acked += 1

    with pytest.raises(Unavailable, match=r"used up the reserve: free [0-9]+ MB or more .* nothing is lost"):
        ack_all()
    assert acked * 1_000 >= 4096
    machine.make_room()
    for lease in leases[acked:]:
        assert store.ack([c.AckReport(lease.job.id, lease.token, result)]) == [c.Acked(lease.job.id)]
    assert store.enqueue([job("room")]) == [c.Enqueued("room")]
    assert len(machine.files()["reserve"]) > 4096


@rule("W7")
def test_what_adds_jobs_or_gives_them_out_never_uses_the_reserve(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store, leases = running_on_a_full_disk(machine, tmp_path)
    reserved = len(machine.files()["reserve"])

    def enqueue_on() -> None:
        while True:
            store.enqueue([job(f"more-{store.totals().seq}")])

    def claim_on() -> None:
        while True:
            store.claim("worker", ["q"], 1)

    for act in (enqueue_on, claim_on):
        with pytest.raises(Unavailable, match="no space left"):
            act()
    assert len(machine.files()["reserve"]) == reserved
    assert store.ack([c.AckReport(leases[0].job.id, leases[0].token)]) == [c.Acked(leases[0].job.id)]


@rule("W7")
def test_an_ack_that_shares_an_append_with_an_enqueue_is_accepted_alone(tmp_path: Path) -> None:
    """No process has noticed yet that the disk is full: the append of both would end the segment."""
    machine = SimulatedMachine()
    store, (lease, *_) = running_on_a_full_disk(machine, tmp_path)
    large = JobSpec("large", "q", "k", b'"%s"' % (b"p" * 4_000))
    acking, enqueueing = LogTicket(c.Ack([c.AckReport(lease.job.id, lease.token)])), LogTicket(c.Enqueue([large]))
    store._runner.run([acking, enqueueing])
    assert acking.error is None
    assert acking.answer == [c.Acked(lease.job.id)]
    assert isinstance(enqueueing.error, Unavailable)
    assert store.job("large") is None


@rule("W7", "W8")
def test_a_snapshot_on_a_full_disk_uses_its_reserve_and_frees_more(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store, leases = running_on_a_full_disk(machine, tmp_path, ended=200)
    for lease in leases:
        store.ack([c.AckReport(lease.job.id, lease.token)])
    with pytest.raises(Unavailable, match="no space left"):
        store.enqueue([job("no")])
    store.purge(c.JobFilter(), by="ada", reason="room", limit=230)
    taken = snapshot(machine, tmp_path, seal_first=True)
    assert taken is not None
    assert taken.name in machine.files()
    assert store.enqueue([job("yes")]) == [c.Enqueued("yes")]
    assert open_simulated(machine.copy(), tmp_path).totals().counts[JobState.READY] == 1


@rule("W7", "W16")
def test_a_first_worker_starts_on_a_full_disk(tmp_path: Path) -> None:
    """Declaring a limit raises the format, which takes a new manifest."""
    machine = SimulatedMachine()
    store, _ = running_on_a_full_disk(machine, tmp_path)
    store.declare_limits({"mailer": LimitTerms(places=3)}, by="worker")
    assert store.limit("mailer") is not None
    assert b'"format": 2' in machine.files()["manifest"]


@rule("W7", "W10")
def test_the_first_process_of_a_boot_starts_on_a_full_disk(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    running_on_a_full_disk(machine, tmp_path)
    later = machine.copy()
    later.fill()
    assert open_simulated(later, tmp_path).totals().counts[JobState.READY] == 30


@rule("W7")
@pytest.mark.parametrize("count", range(1, 60, 3))
def test_a_process_may_die_at_any_operation_on_a_full_disk(tmp_path: Path, count: int) -> None:
    simulations.crash_when_full(count, tmp_path, count)


@rule("W7")
def test_a_report_that_cannot_fit_leaves_the_reserve_to_the_others(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store, (large, small, *_) = running_on_a_full_disk(machine, tmp_path)
    reserved = len(machine.files()["reserve"])
    with pytest.raises(Unavailable, match="no space left"):
        store.ack([c.AckReport(large.job.id, large.token, b'"%s"' % (b"r" * 100_000))])
    assert reserved - len(machine.files()["reserve"]) <= 4096, "a block for the manifest at most"
    assert store.ack([c.AckReport(small.job.id, small.token)]) == [c.Acked(small.job.id)]


@rule("W7", "W8")
def test_a_snapshot_that_does_not_fit_gives_its_reserve_back(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    store, leases = running_on_a_full_disk(machine, tmp_path)
    log_of(store).space.shrink_snapshot_reserve()
    store.ack([c.AckReport(lease.job.id, lease.token, b'"%s"' % (b"r" * 400)) for lease in leases])
    reserved = len(machine.files()["reserve-snapshot"])
    with pytest.raises(Unavailable, match=r"nothing was changed; purge finished jobs, or free [0-9]+ MB or more"):
        snapshot(machine, tmp_path, seal_first=True)
    assert len(machine.files()["reserve-snapshot"]) >= reserved - 16 * 1024 > 0 or reserved < 16 * 1024
