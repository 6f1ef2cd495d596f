"""W17: a folder's clock that was ahead comes back after a boot, or when it is set; nothing is early, late or lost."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.kernel import commands as c
from leasemill.kernel.events import ClockSet
from leasemill.kernel.image import digest, image, jobs_in_order, restore
from leasemill.kernel.invariants import violations
from leasemill.kernel.machine import apply, run
from leasemill.kernel.model import SECOND, JobSpec, JobState, LimitTerms, LimitUse, Rules, UniqueKey, UniqueUntil
from leasemill.kernel.state import State
from leasemill.store.file.clock import EARLIEST_US, FAR_AHEAD_US, RealMachine
from leasemill.store.file.spill import state as spill
from leasemill.store.file.store import FileStore
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from leasemill.worker.run import Run
from tests.crash.lab import open_simulated, state_of
from tests.lab.faults import SimulatedCrash, SimulatedMachine

DAY = 86_400 * SECOND
NOW = EARLIEST_US + 100 * DAY
YEAR = 365 * DAY


def ahead(folder: Path, by_us: int = YEAR) -> tuple[SimulatedMachine, c.Lease]:
    """A folder that was opened by a machine whose clock is ahead, with a job of each kind; one of them is held."""
    machine = SimulatedMachine(wall_us=NOW + by_us)
    with open_simulated(machine, folder) as store:
        store.enqueue([JobSpec("held", "q", "k")])
        (lease,) = store.claim("w", ["q"], 1)
        store.enqueue(
            [
                JobSpec("due", "q", "k"),
                JobSpec("in-a-lane", "q", "k", lane="lane"),
                JobSpec("behind-it", "q", "k", lane="lane"),
                JobSpec("in-an-hour", "q", "k", delay_us=3_600 * SECOND),
                JobSpec("on-a-day", "q", "k", run_at=NOW + by_us + 30 * DAY),
                JobSpec("throttled", "q", "k", rules=Rules(unique=UniqueKey("key", UniqueUntil.STARTED, keep_us=DAY))),
            ]
        )
    return machine, lease


def rebooted(machine: SimulatedMachine, wall_us: int) -> SimulatedMachine:
    after = machine.copy(reboots=True)
    after.wall_us_now = wall_us
    return after


@rule("W17", "W10")
def test_after_a_boot_with_a_right_clock_a_folder_that_was_ahead_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, lease = ahead(tmp_path)
    machine = rebooted(machine, NOW)
    with open_simulated(machine, tmp_path) as store:
        assert store.time() == NOW
        expected = "the clock of simulated was 2027-"
        assert any(expected in one.getMessage() and one.levelno == logging.ERROR for one in caplog.records)
        assert isinstance(store.ack([c.AckReport("held", lease.token)])[0], c.Lost), "no lease is revived"
        ids = [one.job.id for one in store.claim("w", ["q"], 10)]
        assert ids == ["held", "due", "in-a-lane", "throttled"], "what was due is due"
        store.enqueue([JobSpec("in-300-days", "q", "k", run_at=NOW + 300 * DAY)])
        assert store.claim("w", ["q"], 10) == []
        machine.advance(3_600 * SECOND)
        assert [one.job.id for one in store.claim("w", ["q"], 10) if one.job.id == "in-an-hour"] == ["in-an-hour"]
        on_a_day = store.job("on-a-day")
        assert on_a_day is not None
        assert on_a_day.available_at == NOW + YEAR + 30 * DAY, "a time that was named stays"
        assert violations(state_of(store)) == []


@rule("W17", "U3")
def test_a_kept_key_is_free_when_its_time_is_over(tmp_path: Path) -> None:
    machine, _ = ahead(tmp_path)
    machine = rebooted(machine, NOW)
    again = JobSpec("again", "q", "k", rules=Rules(unique=UniqueKey("key", UniqueUntil.STARTED, keep_us=DAY)))
    with open_simulated(machine, tmp_path) as store:
        store.claim("w", ["q"], 10)
        assert isinstance(store.enqueue([again])[0], c.Merged)
        machine.advance(DAY + SECOND)
        assert isinstance(store.enqueue([again])[0], c.Enqueued)


@rule("W17")
@pytest.mark.parametrize(
    ("by_us", "wall_us"),
    [(FAR_AHEAD_US - SECOND, NOW), (YEAR, EARLIEST_US - 1), (YEAR, 0)],
    ids=["less than a day", "before this version", "1970"],
)
def test_a_machine_whose_own_clock_is_behind_sets_nothing_back(tmp_path: Path, by_us: int, wall_us: int) -> None:
    machine, _ = ahead(tmp_path, by_us)
    machine = rebooted(machine, wall_us)
    with open_simulated(machine, tmp_path) as store:
        assert store.time() == NOW + by_us


@rule("W17", "W16", "W10")
def test_wherever_a_process_dies_while_it_sets_the_clock_the_next_one_has_set_it_once(tmp_path: Path) -> None:
    def found(machine: SimulatedMachine) -> tuple[int, dict[str, int]]:
        with open_simulated(machine, tmp_path) as store:
            store.totals()
            assert violations(state_of(store)) == []
            return store.time(), {job.spec.id: job.available_at for job in store.jobs().jobs}

    first, _ = ahead(tmp_path)
    expected = found(rebooted(first, NOW))
    step = 0
    while True:
        step += 1
        machine = rebooted(first, NOW)
        machine.crash_at(step)
        try:
            assert found(machine) == expected
            break
        except SimulatedCrash:
            machine.forget_faults()
        killed = machine.copy(reboots=False)
        assert found(killed) == expected, f"another process goes on, after step {step}"
        machine.lose_power(random.Random(step))
        again = machine.copy()
        again.wall_us_now = NOW
        assert found(again) == expected, f"after a power failure at step {step}"
    assert step > 10


@rule("W17", "W10")
def test_a_setting_that_was_interrupted_is_not_taken_up_in_another_boot(tmp_path: Path) -> None:
    machine = SimulatedMachine(wall_us=NOW)
    with open_simulated(machine, tmp_path) as store:
        store.enqueue([JobSpec("job", "q", "k")])
        log = store._replica.opened_log()
        with log.locked():
            log.forget_clock()
    machine = rebooted(machine, 0)  # no battery: 1970
    with open_simulated(machine, tmp_path) as store:
        assert store.time() >= NOW


@rule("W17", "L8", "C7")
@pytest.mark.parametrize("step_us", [-2 * 3_600 * SECOND, 2 * 3_600 * SECOND, -YEAR, YEAR])
def test_a_clock_that_is_set_in_a_boot_ends_no_lease_and_revives_none(tmp_path: Path, step_us: int) -> None:
    machine = SimulatedMachine(wall_us=NOW)
    with open_simulated(machine, tmp_path) as store, open_simulated(machine, tmp_path) as other:
        store.enqueue([JobSpec("over", "q", "k"), JobSpec("held", "q", "k"), JobSpec("later", "q", "k", delay_us=DAY)])
        (over,) = store.claim("w", ["q"], 1)
        machine.advance(20 * SECOND)
        (held,) = store.claim("w", ["q"], 1)
        machine.advance(15 * SECOND)
        other.totals()
        machine.wall_us_now += step_us
        set_at = store.set_clock()
        assert set_at == store.time() == other.time() == machine.wall_us()
        assert isinstance(other.ack([c.AckReport("over", over.token)])[0], c.Lost)
        job = other.job("held")
        assert job is not None
        assert job.executions[-1].expires_at - set_at == 15 * SECOND, "the time it had left"
        assert isinstance(other.ack([c.AckReport("held", held.token)])[0], c.Acked)
        later = other.job("later")
        assert later is not None
        assert later.available_at - set_at <= DAY, "it waits no longer than it would have"
        assert violations(state_of(other)) == []


@rule("W17", "C3")
@pytest.mark.parametrize("ends", ["release", "expire"])
def test_a_job_that_was_held_while_the_clock_was_set_back_is_due_at_once_when_its_lease_ends(
    tmp_path: Path, ends: str
) -> None:
    machine = SimulatedMachine(wall_us=NOW + YEAR)
    with open_simulated(machine, tmp_path) as store:
        store.enqueue([JobSpec("held", "q", "k")])
        machine.advance(SECOND)
        (held,) = store.claim("w", ["q"], 1)
        machine.wall_us_now -= YEAR
        store.set_clock()
        if ends == "release":
            store.release([c.ReleaseReport("held", held.token)])
        else:
            machine.advance(31 * SECOND)
        assert [one.job.id for one in store.claim("w", ["q"], 1)] == ["held"]
        assert violations(state_of(store)) == []


@rule("W17", "L9")
def test_a_worker_believes_an_extension_that_ends_earlier_by_a_clock_that_was_set_back() -> None:
    with MemoryStore(ManualClock()) as store:
        store.enqueue([JobSpec("job", "q", "k")])
        (lease,) = store.claim("w", ["q"], 1)
    held = Run(lease, None, sent_at=100.0)
    assert held.extended(110.0, lease.expires_at - 7_200 * SECOND, is_repeat=False)
    assert held.ends_at == 110.0 + held.lease_s
    assert not held.extended(111.0, held.expires_at, is_repeat=False), "the end it had"


@rule("W17", "T10")
def test_a_rate_that_was_used_by_a_clock_ahead_grants_again_in_time() -> None:
    state = State()
    run(state, c.SetLimit("api", LimitTerms(rate=1, per_us=60 * SECOND, burst=1), "ada", "why"), NOW)
    rules = Rules(limits=(LimitUse("api"),))
    run(state, c.Enqueue([JobSpec("a", "q", "k", rules=rules), JobSpec("b", "q", "k", rules=rules)]), NOW + YEAR)
    claim = c.Claim("w", ["q"], 2, ["1", "2"], "r", {})
    _, leases = run(state, claim, NOW + YEAR)
    run(state, c.Ack([c.AckReport(leases[0].job.id, leases[0].token)]), NOW + YEAR)
    apply(state, ClockSet(NOW + YEAR, NOW))
    again = c.Claim("w", ["q"], 2, ["3", "4"], "s", {})
    assert run(state, again, NOW + SECOND)[1] == []
    assert [one.job.id for one in run(state, again, NOW + 61 * SECOND)[1]] == ["b"]
    assert violations(state) == []


HOUR = 3_600 * SECOND


def set_ahead_and_back(state: State, between: Callable[[int], object], by_us: int = 20 * HOUR) -> None:
    """The clock is right until NOW, then ahead for a minute, in which `between` gets its time; then right again."""
    apply(state, ClockSet(NOW, NOW + by_us))
    between(NOW + by_us + 30 * SECOND)
    apply(state, ClockSet(NOW + by_us + 60 * SECOND, NOW + 60 * SECOND))
    assert violations(state) == []


def claimed(state: State, now: int) -> list[str]:
    token = f"t{now}"
    return [one.job.id for one in run(state, c.Claim("w", ["q"], 1, [token], token, {}), now)[1]]


def ack(state: State, job_id: str, claimed_at: int) -> None:
    run(state, c.Ack([c.AckReport(job_id, f"t{claimed_at}")]), claimed_at)


@rule("W17", "E3")
def test_a_job_for_a_time_of_day_waits_for_it_also_where_the_clock_was_later_when_it_was_enqueued() -> None:
    state = State()
    in_an_hour = JobSpec("job", "q", "k", run_at=NOW + HOUR)
    set_ahead_and_back(state, lambda now: run(state, c.Enqueue([in_an_hour]), now))
    assert claimed(state, NOW + HOUR - SECOND) == []
    assert claimed(state, NOW + HOUR) == ["job"]


@rule("W17", "E3")
def test_a_delay_that_was_counted_from_the_right_time_is_not_shortened() -> None:
    state = State()

    def claim_and_release(now: int) -> None:
        assert claimed(state, now + DAY) == ["job"]
        run(state, c.Release([c.ReleaseReport("job", f"t{now + DAY}")]), now + DAY)

    run(state, c.Enqueue([JobSpec("job", "q", "k", delay_us=DAY)]), NOW - SECOND)
    set_ahead_and_back(state, claim_and_release, by_us=2 * DAY)
    assert claimed(state, NOW + DAY - 2 * SECOND) == []
    assert claimed(state, NOW + DAY) == ["job"]


@rule("W17", "T10")
def test_a_rate_that_granted_before_the_clock_was_ahead_grants_no_more_than_it_allows() -> None:
    state = State()
    run(state, c.SetLimit("api", LimitTerms(rate=1, per_us=DAY, burst=1), "ada", "why"), NOW - HOUR)
    rules = Rules(limits=(LimitUse("api"),))
    run(state, c.Enqueue([JobSpec(name, "q", "k", rules=rules) for name in "ab"]), NOW - HOUR)
    assert claimed(state, NOW - HOUR) == ["a"]
    ack(state, "a", NOW - HOUR)
    set_ahead_and_back(state, lambda _now: None)
    assert claimed(state, NOW + DAY - HOUR - SECOND) == []
    assert claimed(state, NOW + DAY - HOUR) == ["b"]


@rule("W17", "O7")
def test_what_succeeded_while_the_clock_was_ahead_is_forgotten_in_time() -> None:
    state = State()

    def succeed(now: int) -> None:
        run(state, c.Enqueue([JobSpec("job", "q", "k")]), now)
        assert claimed(state, now) == ["job"]
        ack(state, "job", now)

    set_ahead_and_back(state, succeed, by_us=YEAR)
    assert run(state, c.Prune(NOW, 1_000_000, 10), NOW + DAY)[1] == 0
    assert run(state, c.Prune(NOW + DAY, 1_000_000, 10), NOW + 2 * DAY)[1] == 1


@rule("W17", "U3", "U10")
def test_a_trailing_job_keeps_its_key_from_when_it_was_due_although_it_failed_while_the_clock_was_ahead() -> None:
    state = State()
    unique = UniqueKey("key", UniqueUntil.STARTED, keep_us=HOUR, is_trailing=True)

    def call(name: str, now: int) -> object:
        return run(state, c.Enqueue([JobSpec(name, "q", "k", rules=Rules(unique=unique))]), now)[1][0]

    def fail(now: int) -> None:
        assert claimed(state, now) == ["trailing"]
        run(state, c.Nack([c.NackReport("trailing", f"t{now}", "it broke", delay_us=HOUR)]), now)

    assert isinstance(call("first", NOW - HOUR), c.Enqueued)
    assert claimed(state, NOW - HOUR) == ["first"]
    ack(state, "first", NOW - HOUR)
    call("trailing", NOW - HOUR + SECOND)
    set_ahead_and_back(state, fail, by_us=HOUR)
    assert digest(restore(image(state), jobs_in_order(state))) == digest(state)
    job = state.jobs["trailing"]
    assert job.spec.run_at == NOW
    call("next", NOW + 90 * SECOND)
    assert state.jobs["next"].available_at == NOW + HOUR


@rule("W17")
def test_jobs_that_were_out_of_memory_are_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "KEPT_IN_MEMORY", 100)
    monkeypatch.setattr(spill, "SPILLED_AT_ONCE", 50)
    machine = SimulatedMachine(wall_us=NOW + YEAR)
    with open_simulated(machine, tmp_path) as store:
        for batch in range(10):
            store.enqueue([JobSpec(f"j{batch}-{number}", "q", "k") for number in range(100)])
        machine.wall_us_now -= YEAR
        store.set_clock()
        state = state_of(store)
        assert isinstance(state, spill.SpillingState)
        assert state.index.count >= 850
        assert len(store.claim("w", ["q"], 1_000)) == 1_000
        assert violations(state) == []


@rule("W17", "W8")
def test_a_state_whose_clock_was_set_back_is_the_same_from_a_snapshot() -> None:
    state = State()
    rules = Rules(unique=UniqueKey("key", UniqueUntil.ENDED, keep_us=DAY))
    jobs = [JobSpec("a", "q", "k", rules=rules), JobSpec("b", "q", "k", delay_us=DAY), JobSpec("c", "q", "k", lane="l")]
    run(state, c.Enqueue(jobs), NOW + YEAR)
    apply(state, ClockSet(NOW + YEAR, NOW))
    assert violations(state) == []
    assert digest(restore(image(state), jobs_in_order(state))) == digest(state)


@rule("W17")
def test_an_operator_compares_and_sets_the_clock(tmp_path: Path) -> None:
    class Ahead(RealMachine):
        def wall_us(self) -> int:
            return super().wall_us() + 2 * 3_600 * SECOND

    folder = tmp_path / "jobs"
    with FileStore(folder, machine=Ahead()) as store:
        store.enqueue([JobSpec("job", "q", "k")])
    shown = CliRunner().invoke(main, ["wal", "clock", str(folder)])
    assert "2.0 h ahead of this machine's; if that is right: leasemill wal clock --set" in shown.output
    shown = CliRunner().invoke(main, ["wal", "clock", "--set", str(folder)])
    assert "set to " in shown.output
    shown = CliRunner().invoke(main, ["wal", "clock", str(folder)])
    assert "it agrees with this machine's" in shown.output
    with FileStore(folder) as store:
        (lease,) = store.claim("w", ["q"], 1)
        job = store.job("job")
        assert lease.job.id == "job"
        assert job is not None
        assert job.state is JobState.LEASED


@rule("W17", "W10")
def test_the_clock_is_compared_without_a_change_even_by_the_first_command_of_a_boot(
    tmp_path: Path,
) -> None:
    class Earlier(RealMachine):
        def boot_id(self) -> str:
            return "an earlier boot"

        def wall_us(self) -> int:
            return super().wall_us() - 3 * 3_600 * SECOND

    def content() -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}

    def compared() -> tuple[str, dict[str, object]]:
        before, opened = content(), ["wal", "clock", str(folder)]
        found = (
            CliRunner().invoke(main, opened).output,
            json.loads(CliRunner().invoke(main, [*opened, "--json"]).output),
        )
        assert content() == before
        return found

    folder = tmp_path / "jobs"
    with FileStore(folder, machine=Earlier()) as store:
        store.enqueue([JobSpec("job", "q", "k")])
        store.claim("w", ["q"], 1)
    text, fields = compared()
    assert (
        "is not set in this boot: the next process that uses the folder sets it; the last event in its log was at "
        in text
    )
    assert "3.0 h behind this machine's" in text
    assert (fields["before"], fields["ahead_s"]) == (None, None)
    assert fields["latest_at"] is not None
    with FileStore(folder) as store:
        store.enqueue([JobSpec("another", "q", "k")])
    text, fields = compared()
    assert "it agrees with this machine's" in text
    assert fields["before"] == fields["after"] is not None
