"""Which folder it is: files of others are refused, and a handle notices when another folder takes the place of its."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.errors import Broken, Invalid, Unavailable
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.factory import open_store
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule
from tests.crash.lab import open_simulated
from tests.lab.faults import SimulatedCrash, SimulatedMachine

SMALL = FileOptions(segment_bytes=4096, does_maintenance=False)


def job(job_id: str) -> JobSpec:
    return JobSpec(job_id, "q", "k")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


# Another folder at the same path ---------------------------------------------------------------------------------


@rule("E1", "W18")
def test_a_handle_does_not_go_on_in_a_new_folder_at_the_same_path(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
        (lease,) = store.claim("worker", ["q"], 1)
        shutil.rmtree(folder)
        with FileStore(folder, options=SMALL) as other:
            other.enqueue([job("of the other")])
            for _ in range(3):
                with pytest.raises(Unavailable, match=r"removed or replaced|is another one than this process has used"):
                    store.enqueue([job("second")])
                with pytest.raises(Unavailable, match="restart this process to use the new one; nothing was written"):
                    store.ack([c.AckReport(lease.job.id, lease.token)])
                with pytest.raises(Unavailable):
                    store.job("first")
            assert other.job("second") is None
            assert other.totals().seq == 1


@rule("W18")
def test_a_reading_notices_first(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
        assert store.job("first") is not None
        shutil.rmtree(folder)
        with FileStore(folder, options=SMALL), pytest.raises(Unavailable):
            store.job("first")


@rule("W18")
def test_a_handle_goes_on_when_its_folder_is_moved_back(folder: Path, tmp_path: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
        folder.rename(tmp_path / "aside")
        with pytest.raises(Unavailable, match="put it back"):
            store.enqueue([job("second")])
        FileStore(folder, options=SMALL).close()
        with pytest.raises(Unavailable, match="is another one than this process has used"):
            store.enqueue([job("second")])
        shutil.rmtree(folder)
        (tmp_path / "aside").rename(folder)
        assert store.enqueue([job("first")]) == [c.Duplicate("first")]
        assert store.enqueue([job("second")]) == [c.Enqueued("second")]


@rule("W18")
def test_a_folder_of_an_earlier_version_gets_an_identity_from_the_first_process_that_knows_them(folder: Path) -> None:
    FileStore(folder, options=SMALL).close()
    with (folder / "lock").open("r+b") as lock:
        lock.seek(4080)
        lock.write(bytes(16))
    with FileStore(folder, options=SMALL) as store, FileStore(folder, options=SMALL) as other:
        store.enqueue([job("first")])
        assert other.job("first") is not None
    assert (folder / "lock").read_bytes()[4080:] != bytes(16)


# A folder that is not one of jobs --------------------------------------------------------------------------------


def test_a_folder_with_files_of_others_is_refused_and_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "passwd").write_text("root")
    with pytest.raises(Invalid, match=r"not a Leasemill folder and not empty \(it holds passwd\): name a new"):
        open_store(f"file:{folder}")
    assert [path.name for path in folder.iterdir()] == ["passwd"]
    (folder / "tasks.py").write_text("from leasemill import App\napp = App()\n@app.job\ndef f() -> None: ...\n")
    ended = CliRunner().invoke(main, ["stats", "--url", f"file:{folder}"])
    assert (ended.exit_code, "not a Leasemill folder" in ended.output) == (2, True), ended.output


@pytest.mark.parametrize("name", [".gitkeep", ".gitignore", "lost+found"])
def test_a_placeholder_does_not_make_a_folder_someone_elses(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder / name).touch()
    with open_store(f"file:{folder}") as store:
        assert store.enqueue([job("first")]) == [c.Enqueued("first")]


def test_files_of_others_beside_a_log_are_no_reason_to_refuse_it(folder: Path) -> None:
    FileStore(folder, options=SMALL).close()
    (folder / "notes.txt").touch()
    FileStore(folder, options=SMALL).close()


@rule("W6")
def test_a_folder_whose_creation_was_interrupted_is_completed(tmp_path: Path) -> None:
    """The process dies at each operation; the files it left are put into a real folder."""
    for count in range(1, 40):
        machine = SimulatedMachine()
        machine.crash_at(count)
        try:
            open_simulated(machine, tmp_path)
        except SimulatedCrash:
            pass
        else:
            assert count > 5
            return
        folder = tmp_path / f"half-made-{count}"
        folder.mkdir()
        for name, content in machine.files().items():
            (folder / name).write_bytes(content)
        with FileStore(folder, options=SMALL) as store:
            assert store.enqueue([job("first")]) == [c.Enqueued("first")]
    raise AssertionError("the folder was never completed")


@rule("W3")
def test_a_log_without_its_manifest_is_not_overwritten(folder: Path) -> None:
    with FileStore(folder, options=SMALL) as store:
        store.enqueue([job("first")])
    (folder / "manifest").rename(folder.parent / "manifest")
    before = sorted(folder.iterdir())
    with pytest.raises(Broken, match=r"the manifest of .* is missing, and segment-.* is there; restore the folder"):
        FileStore(folder, options=SMALL)
    assert sorted(folder.iterdir()) == before
    (folder.parent / "manifest").rename(folder / "manifest")
    with FileStore(folder, options=SMALL) as store:
        assert store.job("first") is not None
