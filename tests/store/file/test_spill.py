"""Jobs that are kept on disk instead of in memory: answers and states must be those of the kernel alone."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.image import digest
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import run
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.file.disk import File
from leasemill.store.file.spill import orders, volumes
from leasemill.store.file.spill import state as spill
from leasemill.store.file.spill.state import SpillingState
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.lab import digest_of, open_simulated, snapshot, state_of
from tests.crash.walk import Model, Walk
from tests.crash.walk_limits import LimitWalk
from tests.lab.faults import SimulatedMachine, SimulatedScratch


@pytest.fixture(autouse=True)
def _everything_leaves_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "KEPT_IN_MEMORY", 0)
    monkeypatch.setattr(spill, "SPILLED_AT_ONCE", 1)


@pytest.fixture
def state() -> Iterator[SpillingState]:
    with closing(SpillingState(SimulatedScratch)) as state:
        yield state


def job(job_id: str, delay_us: int = 0) -> JobSpec:
    return JobSpec(job_id, "q", "k", b'{"n":1}', delay_us=delay_us)


def carry_out(state: SpillingState, command: c.Command[object], now: int) -> object:
    answer = run(state, command, now)[1]
    state.spill_oldest()
    return answer


@pytest.mark.parametrize("seed", range(6))
def test_a_walk_over_every_verb_is_answered_as_by_the_kernel_alone(
    state: SpillingState, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "SCRATCH_BYTES", 2_000)
    monkeypatch.setattr(orders, "MOST_RUNS", 2)
    monkeypatch.setattr(orders, "ENTRIES_TOLERATED", 3)
    source, clock, alone, beside = random.Random(seed), ManualClock(), Model(), Model()
    beside.state = state
    walk = LimitWalk(source, uniqueness=0.2) if seed % 2 else Walk(source)
    spilled = 0
    for step in range(700):
        monkeypatch.setattr(spill, "KEPT_IN_MEMORY", source.choice((0, 0, 5, 40)))
        command = walk.next(alone.state)
        assert beside.answer(command, clock.now()) == alone.answer(command, clock.now()), f"step {step}: {command}"
        state.spill_oldest()
        spilled = max(spilled, state.index.count)
        assert len(state.finished) == len(alone.state.finished)
        if step % 50 == 0:
            assert digest(state) == alone.digest()
        clock.advance(us=source.choice((0, 1, 1_000, 400_000)))
    assert spilled > 10
    assert digest(state) == alone.digest()
    assert violations(state) == []
    assert state.index.count == 0  # the check has read them all
    assert digest(state) == alone.digest()


def test_what_has_succeeded_or_waits_leaves_memory_and_is_found_and_counted(state: SpillingState) -> None:
    carry_out(state, c.Enqueue([job(f"j{number}") for number in range(50)]), 1)
    leases = carry_out(state, c.Claim("w", ("q",), 20, [f"t{number}" for number in range(20)], None, {}), 2)
    assert isinstance(leases, list)
    carry_out(state, c.Ack([c.AckReport(lease.job.id, lease.token, b"7") for lease in leases]), 3)
    assert dict.__len__(state.jobs) == 0
    assert len(state.jobs) == 50
    found = carry_out(state, c.GetJob("j3"), 4)
    assert found is not None
    assert dict.__len__(state.jobs) == 0  # a reading leaves it where it is
    page = carry_out(state, c.ListJobs(c.JobFilter(states=frozenset({JobState.SUCCEEDED})), 100), 4)
    assert [one.spec.id for one in page.jobs] == [f"j{number}" for number in range(20)]  # type: ignore[attr-defined]
    assert state.queues["q"].counts[JobState.READY] == 30
    assert carry_out(state, c.DueIn(("q",)), 4) == 0
    assert carry_out(state, c.Prune(0, 15, 100), 5) == 5
    assert carry_out(state, c.GetJob("j4"), 6) is None
    assert len(state.jobs) == 45


@rule("O7")
def test_what_is_forgotten_leaves_the_disk_and_not_by_way_of_memory(state: SpillingState) -> None:
    jobs = [job(f"j-{number:03}") for number in range(100)]
    carry_out(state, c.Enqueue(jobs), 1)
    tokens = [f"token-{number}" for number in range(100)]
    carry_out(state, c.Claim("worker", ("q",), 100, tokens, None, {}), 2)
    carry_out(state, c.Ack([c.AckReport(one.id, token) for one, token in zip(jobs, tokens, strict=True)]), 3)
    assert state.index.count == 100
    kept = 100
    while kept:
        assert carry_out(state, c.Prune(0, kept - 10, 10), 4) == 10
        kept -= 10
        assert len(state.jobs) == len(state.finished) == kept
        assert dict.__len__(state.jobs) == 0
        assert [one.spec.id for one in state.listing.after(0)] == [
            f"j-{number:03}" for number in range(100 - kept, 100)
        ]
    assert state.index.count == 0
    assert carry_out(state, c.Prune(0, 0, 10), 5) == 0
    carry_out(state, c.Enqueue(jobs[:1]), 6)  # its id is free again (E5)
    assert len(state.jobs) == 1
    assert "j-000" in state.jobs


def test_jobs_are_claimed_in_their_order_wherever_they_are(
    state: SpillingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "MOST_RUNS", 2)
    source = random.Random(3)
    due = {f"j{number}": source.randint(0, 40) for number in range(300)}
    for name, delay_us in due.items():
        carry_out(state, c.Enqueue([job(name, delay_us=delay_us)]), 1)
        if source.random() < 0.2:
            state.jobs.get(source.choice(list(due)))  # back into memory
    expected = sorted(due, key=lambda name: due[name])
    claimed: list[str] = []
    while leases := carry_out(
        state, c.Claim("w", ("q",), 7, [f"t{len(claimed)}-{one}" for one in range(7)], None, {}), 99
    ):
        claimed += [lease.job.id for lease in leases]  # type: ignore[attr-defined]
    assert claimed == expected


def test_a_scratch_file_is_closed_when_none_of_its_jobs_is_wanted(
    state: SpillingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, "SCRATCH_BYTES", 1_000)
    carry_out(state, c.Enqueue([JobSpec("stays", "other", "k")]), 1)
    for number in range(200):
        carry_out(state, c.Enqueue([job(f"j{number}")]), 1)
        carry_out(state, c.Claim("w", ("q",), 1, [f"t{number}"], None, {}), 2)
        carry_out(state, c.Ack([c.AckReport(f"j{number}", f"t{number}")]), 3)
        carry_out(state, c.Prune(0, 3, 100), 4)
    assert len(state._volumes._volumes) < 8
    assert carry_out(state, c.GetJob("stays"), 5) is not None


def test_without_room_for_scratch_files_jobs_stay_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    def no_room() -> File:
        raise OSError(errno.ENOSPC, "No space left on device")

    state = SpillingState(no_room)
    for number in range(5):
        carry_out(state, c.Enqueue([job(f"j{number}")]), 1)
    assert dict.__len__(state.jobs) == 5
    assert caplog.text.count("jobs stay in memory") == 1
    assert violations(state) == []


@rule("W8")
def test_a_process_reads_its_jobs_from_a_snapshot_that_another_has_replaced(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    writer = open_simulated(machine, tmp_path, segment_bytes=512)
    for number in range(30):
        writer.enqueue([job(f"j{number}")])
    assert snapshot(machine, tmp_path, segment_bytes=512) is not None
    reader = open_simulated(machine, tmp_path, segment_bytes=512)
    assert reader.totals().counts[JobState.READY] == 30
    before = {name for name in machine.files() if name.startswith("snapshot-")}
    writer.enqueue([job(f"k{number}") for number in range(30)])
    assert snapshot(machine, tmp_path, segment_bytes=512) is not None
    assert not before & set(machine.files())
    found = reader.job("j7")
    assert found is not None
    assert found.spec == job("j7")
    assert digest_of(reader) == digest_of(writer)
    assert violations(state_of(reader)) == []


@rule("W8")
def test_a_record_that_cannot_be_read_back_is_not_taken_for_a_job(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    writer = open_simulated(machine, tmp_path, segment_bytes=512)
    for number in range(30):
        writer.enqueue([job(f"j{number}")])
    assert snapshot(machine, tmp_path, segment_bytes=512) is not None
    reader = open_simulated(machine, tmp_path, segment_bytes=512)
    reader.totals()
    (name,) = (name for name in machine.files() if name.startswith("snapshot-"))
    content = machine.content(name)
    at = content.cached.find(b"j7")
    content.cached[at : at + 2] = b"zz"
    with pytest.raises(Unavailable, match="cannot be read back"):
        reader.job("j7")
    content.cached[at : at + 2] = b"j7"
    found = reader.job("j7")
    assert found is not None
    assert found.spec == job("j7")
