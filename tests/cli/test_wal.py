"""`leasemill wal` on folders that are sound, torn and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.store.file.format import SEGMENT_HEADER_BYTES
from leasemill.store.file.options import FileOptions
from leasemill.store.file.store import FileStore
from leasemill.testing.rules import rule


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    with FileStore(path, options=FileOptions(segment_bytes=64 * 1024)) as store:
        store.enqueue([JobSpec(f"job-{number}", "mail", "send", b'{"to":%d}' % number) for number in range(3)])
        first, second = store.claim("worker-1", ["mail"], 2)
        store.start([c.StartReport(first.job.id, first.token)])
        store.commit(first.job.id, first.token, result=b'"sent"', followups=[c.Followup("mail", "log")])
        store.ack([c.AckReport(first.job.id, first.token)])
        store.nack([c.NackReport(second.job.id, second.token, "no such host")])
        store.ack([c.AckReport(second.job.id, second.token)])
    return path


def wal(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["wal", *map(str, arguments)])


def segment(folder: Path) -> Path:
    return next(folder.glob("segment-*"))


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 0xFF
    path.write_bytes(content)


def test_without_a_folder_it_is_the_default_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEMILL_URL", f"file:{folder}")
    assert wal("verify").output.startswith(f"{folder}: ")
    monkeypatch.delenv("LEASEMILL_URL")
    monkeypatch.chdir(folder.parent)
    assert ".leasemill holds no Leasemill log" in wal("verify").output
    folder.rename(folder.parent / ".leasemill")
    assert wal("verify").exit_code == 0


def test_verify_says_sound(folder: Path) -> None:
    result = wal("verify", folder)
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == "sound"


def test_a_url_names_the_folder_too(folder: Path) -> None:
    assert wal("verify", f"file:{folder}").exit_code == 0


@rule("W3")
def test_verify_tells_damage_before_what_was_synced_and_changes_nothing(folder: Path) -> None:
    flip(segment(folder), SEGMENT_HEADER_BYTES + 40)
    before = segment(folder).read_bytes()
    result = wal("verify", folder, "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found["is_sound"] is False
    assert found["damage"]["byte"] == SEGMENT_HEADER_BYTES
    assert found["damage"]["is_torn_tail"] is False
    assert segment(folder).read_bytes() == before


@rule("W3")
def test_verify_tells_a_torn_tail_and_calls_it_sound(folder: Path) -> None:
    path = segment(folder)
    content = path.read_bytes()
    path.write_bytes((content.rstrip(b"\0") + b"LM\1E half a frame").ljust(len(content), b"\0"))
    result = wal("verify", folder)
    assert result.exit_code == 0
    assert "torn tail" in result.output


def test_dump_prints_events_a_person_can_read(folder: Path) -> None:
    lines = wal("dump", folder).output.splitlines()
    assert [line.split()[2] for line in lines] == [
        *["JobEnqueued"] * 3,
        *["LeaseGranted"] * 2,
        "ExecutionStarted",
        "ExecutionCommitted",
        "ExecutionDone",
        "ExecutionFailed",
        "ReportRefused",
    ]
    assert "followups=[{id=job-0/0 queue=mail kind=log payload={} priority=0 delay_us=0}]" in lines[6]
    assert "error=no such host" in lines[8]


def test_dump_follows_one_job_as_json(folder: Path) -> None:
    lines = [json.loads(line) for line in wal("dump", folder, "--job", "job-0", "--json").output.splitlines()]
    assert [line["event"] for line in lines] == [
        "JobEnqueued",
        "LeaseGranted",
        "ExecutionStarted",
        "ExecutionCommitted",
        "ExecutionDone",
    ]
    assert lines[0]["job"]["payload"] == {"to": 0}


def test_dump_begins_and_ends_where_it_is_asked_to(folder: Path) -> None:
    everything = [json.loads(line) for line in wal("dump", folder, "--json").output.splitlines()]
    second = next(line["position"] for line in everything if line["position"] > 0)
    lines = wal("dump", folder, "--json", "--from", str(second), "--limit", "2").output.splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["LeaseGranted", "LeaseGranted"]


def test_stats_counts_jobs_and_events(folder: Path) -> None:
    found = json.loads(wal("stats", folder, "--json").output)
    assert found["jobs"] == {"ready": 3, "leased": 0, "succeeded": 1, "failed": 0, "dead": 0, "cancelled": 0}
    assert found["events"]["JobEnqueued"] == 3
    assert "ready        3" in wal("stats", folder).output


@rule("W8")
def test_snapshot_covers_everything_and_keeps_the_state(folder: Path) -> None:
    before = json.loads(wal("stats", folder, "--json").output)["jobs"]
    taken = json.loads(wal("snapshot", folder, "--json").output)["snapshot"]
    after = json.loads(wal("stats", folder, "--json").output)
    assert after["jobs"] == before
    assert after["snapshot"] == taken["name"]
    assert after["events"] == {}
    assert json.loads(wal("snapshot", folder, "--json").output)["snapshot"] is None


def test_snapshot_can_keep_the_segments(folder: Path) -> None:
    name = segment(folder).name
    assert wal("snapshot", folder, "--keep-segments").exit_code == 0
    assert (folder / "archive" / name).is_file()


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    result = wal("stats", tmp_path)
    assert result.exit_code == 2
    assert "holds no Leasemill log" in result.output
