"""The folder and its processes: boots and clocks, forks, stopped holders, what is refused, what has gone."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from leasemill.cli import main
from leasemill.errors import Broken, Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobSpec, JobState, LossReason, Order, Policy
from leasemill.store.file.batch import PRUNE_BATCH, PRUNE_EVERY_S, PRUNE_LEAST
from leasemill.store.file.clock import RealMachine
from leasemill.store.file.folder import refuse_network_file_system
from leasemill.store.file.format import FRAME_HEADER, Kind, checksum, frame_bytes
from leasemill.store.file.inspect import examine
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.store.file.tickets import LogTicket
from leasemill.store.file.watch import FolderWatch
from leasemill.testing.clock import ManualClock
from leasemill.testing.rules import rule
from tests.crash.lab import digest_of, log_of, open_simulated, snapshot
from tests.lab.faults import SimulatedMachine

SMALL = FileOptions(segment_bytes=4096, does_maintenance=False)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


# Boots and clocks ----------------------------------------------------------------------------------------------


class NextBoot(RealMachine):
    """This machine after a boot, its wall clock stepped by as much."""

    def __init__(self, boot: str, wall_step_us: int = 0) -> None:
        self._boot = boot
        self._wall_step_us = wall_step_us
        self._booted_ns = super().since_boot_ns()

    def boot_id(self) -> str:
        return self._boot

    def since_boot_ns(self) -> int:
        return super().since_boot_ns() - self._booted_ns

    def wall_us(self) -> int:
        return super().wall_us() + self._wall_step_us


@rule("W10")
def test_a_new_boot_ends_every_timed_lease_and_no_other(folder: Path) -> None:
    with FileStore(folder, machine=NextBoot("one")) as store:
        store.enqueue([job("leased"), job("started"), job("committed")])
        leases = {lease.job.id: lease for lease in store.claim("worker", ["q"], 3)}
        store.start([c.StartReport("started", leases["started"].token)])
        store.commit("committed", leases["committed"].token)
        store.acquire([c.AcquireRequest("offsets", "lane", 1, "worker", "endless")])
    with FileStore(folder, machine=NextBoot("one")) as same_boot:
        assert same_boot.totals().counts[JobState.LEASED] == 4
    with FileStore(folder, machine=NextBoot("two")) as store:
        states = {one: getattr(store.job(one), "state", None) for one in leases}
        assert states == {"leased": JobState.READY, "started": JobState.READY, "committed": JobState.SUCCEEDED}
        started = store.job("started")
        assert started is not None
        assert started.expirations == 1
        (late,) = store.ack([c.AckReport("leased", leases["leased"].token)])
        assert isinstance(late, c.Lost)
        assert late.reason is LossReason.EXPIRED
        endless = store.job("offsets/lane/1")
        assert endless is not None
        assert endless.state is JobState.LEASED


@rule("W10", "L8")
def test_time_does_not_go_back_over_a_boot(folder: Path) -> None:
    with FileStore(folder, machine=NextBoot("one")) as store:
        store.enqueue([job("first")])
        (lease,) = store.claim("worker", ["q"], 1)
    with FileStore(folder, machine=NextBoot("two", wall_step_us=-3_600 * SECOND)) as store:
        store.enqueue([job("second")])
        second = store.job("second")
        assert second is not None
        assert second.created_at >= lease.leased_at
        assert second.created_at < lease.leased_at + 60 * SECOND


@rule("W10", "L8")
def test_the_wall_clock_may_be_stepped_while_a_folder_is_in_use(folder: Path) -> None:
    machine = NextBoot("one")
    with FileStore(folder, machine=machine) as store:
        store.enqueue([job("first")])
        (lease,) = store.claim("worker", ["q"], 1)
        machine._wall_step_us = 3_600 * SECOND
        with FileStore(folder, machine=machine) as other:
            assert isinstance(other.extend([c.LeaseRef("first", lease.token)])[0], c.Extended)


@rule("W10")
def test_a_process_that_appends_unread_waits_for_the_boot_to_be_looked_at(folder: Path) -> None:
    with FileStore(folder, machine=NextBoot("one")) as store:
        store.enqueue([job("first")])
        store.claim("worker", ["q"], 1)
    with FileStore(folder, machine=NextBoot("two")) as store:
        store.run(c.Enqueue([job("blind")], are_new=True))
        first = store.job("first")
        assert first is not None
        assert first.state is JobState.READY


# Forks and stopped processes -----------------------------------------------------------------------------------


def in_child(act: Callable[[], None]) -> int:
    """Run in a forked child; answers its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@rule("W12")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_the_folder_for_itself(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("before")])

        def use_it() -> None:
            assert store.enqueue([job("before")]) == [c.Duplicate("before")]
            assert store.enqueue([job("child")]) == [c.Enqueued("child")]
            store.close()

        assert in_child(use_it) == 0
        assert store.enqueue([job("child")]) == [c.Duplicate("child")]
        assert store.enqueue([job("after")]) == [c.Enqueued("after")]


@rule("W12")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_frees_no_lock_of_its_parent(folder: Path) -> None:
    quick = FileOptions(segment_bytes=4096, does_maintenance=False, lock_timeout_s=0.05)
    with FileStore(folder, options=quick) as store:
        store.totals()

        def end_at_once() -> None:
            store.close()

        def be_kept_out() -> None:
            with pytest.raises(Unavailable, match="has held the lock"), FileStore(folder, options=quick) as other:
                other.enqueue([job("no")])

        with log_of(store).locked():
            assert in_child(end_at_once) == 0
            assert in_child(lambda: os.kill(os.getpid(), signal.SIGKILL)) == -signal.SIGKILL
            assert in_child(be_kept_out) == 0
        assert store.enqueue([job("after")]) == [c.Enqueued("after")]


HOLDER = """
import os, signal, sys
from leasemill.store.file.store import FileStore
store = FileStore(sys.argv[1])
store.totals()
with store._replica.log.locked():
    print("holds", flush=True)
    signal.pause()
"""


@pytest.fixture
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, stopped while it holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"holds\n"
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@rule("W11")
def test_an_error_names_the_stopped_process_that_holds_the_lock(folder: Path, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(Unavailable, match=rf"process {holder.pid} has held the lock .* continue or end it"):
        FileStore(folder, options=FileOptions(lock_timeout_s=0.05)).enqueue([job("no")])
    holder.kill()
    holder.wait()
    with FileStore(folder) as store:
        assert store.enqueue([job("yes")]) == [c.Enqueued("yes")]


# What is refused -----------------------------------------------------------------------------------------------


@rule("W13")
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_a_sentence(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"99 21 0:50 / /mnt/the\\040share rw shared:2 - {kind} server:/share rw\n"
    )
    refuse_network_file_system(Path("/var/lib/jobs"), mounts)
    with pytest.raises(Broken, match=rf"network file system \({re.escape(kind)}\).*use a local folder"):
        refuse_network_file_system(Path("/mnt/the share/jobs"), mounts)


@rule("W13")
def test_where_the_system_does_not_tell_its_mounts_nothing_is_refused(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path, tmp_path / "there is no such file")


def small_machine(tmp_path: Path) -> SimulatedMachine:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path) as store:
        store.enqueue([job("first")])
    return machine


def with_checksum(content: bytes) -> bytes:
    return f"{checksum(content):08x}\n".encode() + content


@rule("W13")
def test_another_format_of_the_manifest_is_refused_with_a_sentence(tmp_path: Path) -> None:
    machine = small_machine(tmp_path)
    listed = json.loads(machine.files()["manifest"].partition(b"\n")[2])
    machine.put("manifest", with_checksum(json.dumps(listed | {"format": 9}).encode()))
    with pytest.raises(Broken, match="has format 9, this Leasemill reads up to 6"):
        open_simulated(machine.copy(), tmp_path)


@rule("W13")
def test_another_format_of_a_segment_is_refused_with_a_sentence(tmp_path: Path) -> None:
    machine = small_machine(tmp_path)
    name = "segment-0000000000000000-1"
    content = bytearray(machine.files()[name])
    struct.pack_into("<H", content, 14, 9)
    struct.pack_into("<I", content, 24, checksum(bytes(content[:24])))
    machine.put(name, bytes(content))
    with pytest.raises(Broken, match="has format 9, this Leasemill reads up to 6"):
        open_simulated(machine.copy(), tmp_path)


@rule("W13")
def test_another_format_of_a_frame_is_refused_with_a_sentence(tmp_path: Path) -> None:
    machine = small_machine(tmp_path)
    name = "segment-0000000000000000-1"
    content = bytearray(machine.files()[name])
    content[66] = 9
    (length,) = struct.unpack_from("<I", content, 68)
    body = bytes(content[64 + 28 : 64 + 28 + length])
    struct.pack_into("<I", content, 64 + FRAME_HEADER.size, checksum(bytes(content[64:88]) + body))
    machine.put(name, bytes(content))
    with pytest.raises(Broken, match="has format 9, this Leasemill reads up to 6"):
        open_simulated(machine.copy(), tmp_path).totals()
    assert machine.files()[name] == bytes(content)


@rule("W13")
def test_an_event_this_version_does_not_know_stops_the_process(tmp_path: Path) -> None:
    machine = small_machine(tmp_path)
    name = "segment-0000000000000000-1"
    content = bytearray(machine.files()[name])
    (length,) = struct.unpack_from("<I", content, 68)
    at = 64 + 28 + length
    unknown = frame_bytes(Kind.EVENTS, at - 64, 0, b"\x91\x92\x63\x01")
    content[at : at + len(unknown)] = unknown
    machine.put(name, bytes(content))
    with pytest.raises(Broken, match=r"an event this version does not know.*upgrade"):
        open_simulated(machine.copy(), tmp_path).totals()


@rule("W3")
def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path, segment_bytes=512) as store:
        for number in range(20):
            store.enqueue([job(f"j-{number}")])
    names = [name for name in machine.files() if name.startswith("segment-")]
    for name in names:
        torn = machine.copy()
        torn.process().remove(name)
        with pytest.raises(Broken, match=f"{name} is missing from"):
            open_simulated(torn, tmp_path).totals()


@rule("W3")
def test_a_missing_snapshot_is_refused(tmp_path: Path) -> None:
    machine = SimulatedMachine()
    with open_simulated(machine, tmp_path, segment_bytes=512) as store:
        for number in range(20):
            store.enqueue([job(f"j-{number}")])
    taken = snapshot(machine, tmp_path, segment_bytes=512)
    assert taken is not None
    machine.process().remove(taken.name)
    with pytest.raises(Broken, match=f"{taken.name} is missing from"):
        open_simulated(machine.copy(), tmp_path).totals()


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="is a file, not a folder"):
        FileStore(tmp_path / "file")


def test_what_the_system_refuses_while_opening_is_reported_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "lock").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"jobs: Is a directory; check the disk and the folder"):
        FileStore(tmp_path / "jobs")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without rights, for root has all of them."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_folder_that_this_user_may_not_create_is_refused_with_its_parent() -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        with (
            as_nobody(),
            pytest.raises(Unavailable, match=f"permission denied; allow this user to create it in {parent}"),
        ):
            FileStore(Path(parent) / "jobs")


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o700])
def test_a_folder_of_another_user_is_refused_with_a_sentence(mode: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "jobs"
        FileStore(folder).close()
        commands = [["stats", "--url", f"file:{folder}"], ["wal", "verify", str(folder)]]
        assert [CliRunner().invoke(main, command).exit_code for command in commands] == [0, 0]
        (folder / "lock").chmod(0)
        folder.chmod(mode)
        try:
            with as_nobody():
                with pytest.raises(Unavailable, match=r"jobs: permission denied.*run this as the owner of the folder"):
                    FileStore(folder)
                for command in commands:
                    ended = CliRunner().invoke(main, command)
                    assert ended.exit_code == 3, ended.output
                    assert "permission denied" in ended.output
        finally:
            folder.chmod(0o700)


# What has gone, and what was copied ----------------------------------------------------------------------------


@rule("E1")
def test_a_folder_removed_while_in_use_is_not_made_again(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
        shutil.rmtree(folder)
        for _ in range(3):
            with pytest.raises(Unavailable):
                store.enqueue([job("second")])
        assert not folder.exists()


def test_a_folder_removed_and_put_back_is_found_again(folder: Path, tmp_path: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
        shutil.copytree(folder, tmp_path / "copy")
        shutil.rmtree(folder)
        with pytest.raises(Unavailable):
            store.enqueue([job("second")])
        (tmp_path / "copy").rename(folder)
        assert store.enqueue([job("first")]) == [c.Duplicate("first")]
        assert store.enqueue([job("second")]) == [c.Enqueued("second")]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_folder_that_cannot_be_opened_again_leaks_no_descriptor(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
        shutil.rmtree(folder)
        folder.mkdir()
        counts = []
        for _ in range(5):
            with pytest.raises(Unavailable):
                store.enqueue([job("second")])
            counts.append(descriptors())
        assert counts[1:] == counts[1:2] * 4


def test_a_folder_that_cannot_be_opened_leaks_no_descriptor(folder: Path) -> None:
    FileStore(folder).close()
    (folder / "manifest").write_bytes(b"damaged")
    before = descriptors()
    for _ in range(3):
        with pytest.raises(Broken):
            FileStore(folder)
        with pytest.raises(Broken):
            examine(folder)
    assert descriptors() == before


def test_a_watch_may_have_any_descriptor(folder: Path) -> None:
    """select() takes none above 1,023; a process with many connections has them."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed[0], 2_000), allowed[1]))
    try:
        with FileStore(folder) as store, closing(store.watch(["q"])) as watch:
            assert isinstance(watch, FolderWatch)
            reported = watch._writes._fd
            assert reported is not None
            watch._writes._fd = fcntl.fcntl(reported, fcntl.F_DUPFD_CLOEXEC, 1_500)
            os.close(reported)
            assert not watch.wait(0.001)
            store.enqueue([job("first")])
            assert watch.wait(30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)


@rule("W4")
def test_a_copy_of_a_folder_in_use_is_looked_at_again(folder: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    with FileStore(folder, options=SMALL, clock=clock) as store:
        store.enqueue([job("first")])
        shutil.copytree(folder, tmp_path / "copy")
        store.enqueue([job("second")])
        with FileStore(tmp_path / "copy", options=SMALL, clock=clock) as copy:
            assert copy.job("second") is None
            assert copy.enqueue([job("other")]) == [c.Enqueued("other")]
            assert digest_of(copy) != digest_of(store)
        assert store.job("other") is None


def test_a_control_page_that_was_wiped_is_made_again(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store, FileStore(folder, options=SMALL) as other:
        store.enqueue([job("first")])
        other.enqueue([job("second")])
        with (folder / "lock").open("r+b") as lock:
            lock.write(bytes(4096))
        assert store.enqueue([job("second")]) == [c.Duplicate("second")]
        assert other.enqueue([job("first")]) == [c.Duplicate("first")]


DYING = """
import os, signal, sys
from leasemill.kernel.model import JobSpec
from leasemill.store.file.disk import RealFile
from leasemill.store.file.store import FileStore

store, write = FileStore(sys.argv[1]), RealFile.write
store.enqueue([JobSpec("first", "q", "k")])

def write_and_die(file, offset, content):
    write(file, offset, content)
    os.kill(os.getpid(), signal.SIGKILL)

RealFile.write = write_and_die
store.enqueue([JobSpec("last", "q", "k", b'{"text": "longer than what comes next"}')])
"""


@rule("W2", "W9")
@pytest.mark.parametrize("are_new", [True, False], ids=["unread", "read"])
def test_a_frame_whose_writer_died_before_it_recorded_it_is_not_overwritten(folder: Path, *, are_new: bool) -> None:
    """Others may have read it, and would go on behind it."""
    with FileStore(folder) as reader:
        died = subprocess.run([sys.executable, "-c", DYING, str(folder)], check=False).returncode
        assert died == -signal.SIGKILL
        assert reader.job("last") is not None
        with FileStore(folder) as new:
            assert new.run(c.Enqueue([job("new")], are_new=are_new)) == [c.Enqueued("new")]
        reader.enqueue([job("newest")])
        with FileStore(folder) as fresh:
            for store in (reader, fresh):
                assert [one.spec.id for one in store.jobs().jobs] == ["first", "last", "new", "newest"]


@rule("W9")
def test_a_process_that_only_enqueues_new_jobs_does_not_read_the_log(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job(f"j-{number}") for number in range(100)])
    with FileStore(folder, options=SMALL) as blind:
        for number in range(50):
            (outcome,) = blind.run(c.Enqueue([job(f"new-{number}")], are_new=True))
            assert outcome == c.Enqueued(f"new-{number}")
        assert blind._replica.state is None
        assert blind.totals().counts[JobState.READY] == 150


def test_a_reading_beside_a_busy_process_does_not_wait_for_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees all that was there when it was made. What is appended while it reads is for the next one."""
    with FileStore(folder, options=SMALL) as reader, FileStore(folder, options=SMALL) as writer:
        writer.enqueue([job("before")])
        reader.totals()
        catch_up = reader._replica.catch_up

        def meanwhile() -> bool:
            found = catch_up()
            writer.enqueue([job(f"meanwhile-{log_of(writer).position}")])
            return found

        monkeypatch.setattr(reader._replica, "catch_up", meanwhile)
        with monkeypatch.context() as patch:
            patch.setattr(log_of(reader), "locked", lambda **_: pytest.fail("it took the lock"))
            assert reader.totals().counts[JobState.READY] == 1
            assert reader.totals().counts[JobState.READY] == 2


@rule("W9", "E5")
def test_applying_a_known_id_changes_nothing(folder: Path) -> None:
    """Two processes may both append the same id unread, should a generator of ids repeat itself."""
    with FileStore(folder, options=SMALL) as one, FileStore(folder, options=SMALL) as two:
        one.run(c.Enqueue([job("same")], are_new=True))
        two.run(c.Enqueue([JobSpec("same", "other", "k")], are_new=True))
        assert one.totals().seq == 1
        found = two.job("same")
        assert found is not None
        assert found.spec.queue == "q"


@rule("W14", "O7")
def test_finished_jobs_leave_by_age_and_by_number_and_failures_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.store.file.batch.PRUNE_EVERY_S", 0.0)
    clock = ManualClock()
    options = FileOptions(retain_for_s=60, retain_count=3, snapshot_bytes=2**40)
    with FileStore(folder, options=options, clock=clock) as store:
        store.enqueue([job("failed"), job("dead"), *(job(f"j-{number}") for number in range(6))])
        leases = store.claim("worker", ["q"], 8)
        store.nack([c.NackReport("failed", leases[0].token, "it broke", is_permanent=True)])
        store.cancel(["dead"], by="ada", reason="because")
        store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases[2:]])
        store.pause("elsewhere", by="ada", reason="an append, to prune with")
        assert store.totals().counts[JobState.SUCCEEDED] == 3
        assert [store.job(f"j-{number}") is not None for number in range(6)] == [False] * 3 + [True] * 3
        clock.advance(s=61)
        store.resume("elsewhere", by="ada", reason="another")
        counts = store.totals().counts
        assert counts == {**dict.fromkeys(JobState, 0), JobState.FAILED: 1, JobState.CANCELLED: 1}
    with FileStore(folder, options=options, clock=clock) as store:
        assert store.totals().counts == counts


@rule("O7", "W14")
def test_what_is_due_is_forgotten_with_the_appends_that_follow_however_much_it_is(folder: Path) -> None:
    clock = ManualClock()
    with FileStore(folder, options=FileOptions(retain_for_s=60), clock=clock) as store:
        for _ in range(0, 3 * PRUNE_BATCH, 100):
            store.enqueue([job(store.entropy.new_id()) for _ in range(100)])
        while leases := store.claim("worker", ["q"], 100):
            store.ack([c.AckReport(lease.job.id, lease.token) for lease in leases])
        clock.advance(s=61)
        store._runner._pruned_at_s -= PRUNE_EVERY_S  # it is time to look
        left = [3 * PRUNE_BATCH]
        for number in range(3 * PRUNE_BATCH // PRUNE_LEAST + 20):
            store.enqueue([job(f"later-{number}")])
            left.append(store.totals().counts[JobState.SUCCEEDED])
        assert left[-1] == 0
        assert all(before - after <= PRUNE_BATCH for before, after in pairwise(left))  # nobody waits for all of it


@rule("O7", "W14")
def test_where_an_append_ends_more_jobs_than_a_batch_as_many_are_forgotten(folder: Path) -> None:
    count, appends = 2 * PRUNE_BATCH, 6
    with FileStore(folder, options=FileOptions(retain_count=count)) as store:
        for number in range(appends + 1):
            store.enqueue([job(f"{number}-{index}") for index in range(count)])
        leases = store.claim("worker", ["q"], count)
        for _ in range(appends):
            ack = LogTicket(c.Ack([c.AckReport(lease.job.id, lease.token) for lease in leases]))
            claim = LogTicket(c.Claim("worker", ["q"], count, store.entropy.tokens(count)))
            store._runner.run([ack, claim])
            leases = claim.answer
        assert store.totals().counts[JobState.SUCCEEDED] <= 2 * count  # what ended last, at most, is too many


@rule("W11")
def test_a_killed_process_frees_the_lock(folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"holds\n"
    process.kill()
    process.wait()
    process.stdout.close()
    with FileStore(folder) as store:
        assert store.enqueue([JobSpec("j", "q", "k", policy=Policy())]) == [c.Enqueued("j")]


@rule("W16")
def test_the_first_job_with_headers_raises_the_format_and_plain_jobs_leave_it(tmp_path: Path) -> None:
    machine = small_machine(tmp_path)
    with open_simulated(machine, tmp_path) as store:
        store.enqueue([job("plain")])
        assert format_of(machine.files()) == 1
        store.enqueue([replace(job("traced"), headers={"traceparent": "00"})])
        assert format_of(machine.files()) == 2
        store.enqueue([job("after")])
    content = machine.files()["segment-0000000000000000-1"]
    versions = [content[found + 2] for found in frames_in(content)]
    assert versions == sorted(versions)
    assert set(versions) == {1, 2}
    with open_simulated(machine.copy(), tmp_path) as store:
        assert [store.job(name) is not None for name in ("first", "plain", "traced", "after")] == [True] * 4


@rule("W16", "L10")
@pytest.mark.parametrize("is_committed", [False, True], ids=["running", "committed"])
def test_the_first_death_raises_the_format_for_good(tmp_path: Path, is_committed: bool) -> None:
    machine = small_machine(tmp_path)
    with open_simulated(machine, tmp_path) as store:
        (lease,) = store.claim("worker", [job("first").queue], 1)
        if is_committed:
            store.commit(lease.job.id, lease.token)
        assert format_of(machine.files()) == 1
        store.death([c.DeathReport(lease.job.id, lease.token, "exit status 137")])
        assert format_of(machine.files()) == 3
        store.enqueue([replace(job("traced"), headers={"traceparent": "00"})])
        assert format_of(machine.files()) == 3
    with open_simulated(machine.copy(), tmp_path) as store:
        found = store.job(lease.job.id)
        assert found is not None
        assert found.executions[-1].error == "exit status 137"


@rule("W16", "O12")
def test_the_first_order_to_a_worker_raises_the_format_for_good(tmp_path: Path) -> None:
    machine = small_machine(tmp_path)
    with open_simulated(machine, tmp_path) as store:
        store.pause("elsewhere", by="ada", reason="a break")
        assert format_of(machine.files()) == 1
        store.run(c.OrderWorker("worker", "instance", Order.QUIET, "ada", "a leak"))
        assert format_of(machine.files()) == 4
        store.enqueue([replace(job("traced"), headers={"traceparent": "00"})])
        assert format_of(machine.files()) == 4
    with open_simulated(machine.copy(), tmp_path) as store:
        found = store.order("instance")
        assert found is not None
        assert (found.order, found.by, found.reason) == (Order.QUIET, "ada", "a leak")


def format_of(files: dict[str, bytes]) -> int:
    return int(json.loads(files["manifest"].partition(b"\n")[2])["format"])


def frames_in(content: bytes) -> list[int]:
    found, offset = [], 64
    while content[offset : offset + 2] == b"LM":
        found.append(offset)
        (length,) = struct.unpack_from("<I", content, offset + 4)
        offset += 28 + length
    return found
