"""Worker processes on postgresql://: killed, stopped past their leases, and stopped in the middle of a transaction."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.store.postgres.wire.url import parse_url
from tests.lab.processes import RowLocks
from tests.lab.zombie import Variant, play_all, staged
from tests.process.test_demo import run_demo


def test_the_demo_holds_on_a_server_of_its_own() -> None:
    code, output, errors = run_demo("--store", "postgresql", "--jobs", "200", "--json")
    assert code == 0, output + errors
    result: dict[str, Any] = json.loads(output)
    assert result["holds"]
    assert (result["effects_once"], result["lanes_in_order"]) == (200, 20)


def test_without_a_server_to_run_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasemill.testing.postgres._wheel_folders", list)
    monkeypatch.setattr("leasemill.testing.postgres._system_folders", list)
    monkeypatch.delenv("LEASEMILL_TEST_POSTGRES_BIN", raising=False)
    result = CliRunner().invoke(main, ["demo", "--store", "postgresql"])
    assert result.exit_code == 1
    assert 'pip install "leasemill[testing]"' in result.output


def test_a_stopped_worker_changes_nothing_any_more(postgres_url: str) -> None:
    """That the other worker has finished the job by then is in the demo."""
    with staged(postgres_url) as stage:
        runs = play_all(stage, [Variant.RUNNING, Variant.FAILURE], runs=1, parallel=2)
    assert [run for run in runs if not run.is_right] == []
    assert [run.effects for run in runs] == [1] * 2


def test_a_session_between_two_statements_of_a_transaction_is_seen_to_hold_locks(postgres_url: str) -> None:
    locks = RowLocks(postgres_url, "a worker")
    with psycopg.connect(parse_url(postgres_url)[0], application_name="a worker") as connection:
        assert locks.are_free()
        connection.execute("select 1")
        assert not locks.are_free()
        connection.rollback()
        assert locks.are_free()
