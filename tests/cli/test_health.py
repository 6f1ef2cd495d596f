"""One answer for all the processes of a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record

STUCK = RunningJob("j", "k", 1, 9.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'jobs'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        opened.queues()  # makes the folder
        yield opened


def publish(store: Store, number: int, *, processes: int = 3, name: str = "mill", **fields: Any) -> None:
    now = time.time()
    record = WorkerRecord(
        f"{name}.{number}",
        *("here", 1, now, now, 2.0, {"default": 1}, 1, False, [], {}),
        **{"supervisor": name, "processes": processes, **fields},
    )
    store.presence.publish(record.worker, encode_record(record))


def health(url: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["health", "--url", url, *options])


def test_a_worker_is_healthy_when_each_of_its_processes_is(url: str, store: Store) -> None:
    for number in (1, 2, 3):
        publish(store, number)
    publish(store, 1, name="other", processes=2)
    found = health(url, "--worker", "mill")
    assert (found.exit_code, found.output[:26]) == (0, "healthy: 3 of 3 processes,")


def test_a_process_that_is_missing_or_stuck_is_named(url: str, store: Store) -> None:
    publish(store, 1)
    publish(store, 3, stuck=[STUCK])
    found = health(url, "--worker", "mill")
    assert found.exit_code == 1
    assert found.output.startswith("unhealthy: 1 of 3 processes, last heartbeat")
    assert found.output.endswith("; 1 of 2 slots are stuck; not healthy: mill.2, mill.3\n")
    each = json.loads(health(url, "--worker", "mill", "--json").output)["processes"]
    assert {name: one["is_healthy"] for name, one in each.items()} == {"mill.1": True, "mill.2": False, "mill.3": False}
    assert each["mill.2"]["age_s"] is None
    assert health(url, "--worker", "mill.1").exit_code == 0
    assert health(url).exit_code == 0, "any worker will do where none is named"
