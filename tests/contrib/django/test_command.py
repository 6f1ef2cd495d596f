"""`manage.py leasemill …`: the command line, with the project's app and store."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import click
import pytest
from django.core.management import call_command
from django.test import override_settings

from leasemill.contrib.django.management.commands.leasemill import Command, leave_console_to_worker
from leasemill.errors import NotFound
from tests.contrib.django.shop.models import Order

pytestmark = pytest.mark.usefixtures("empty_store")


def manage(*arguments: str) -> Any:
    """As `manage.py leasemill` calls it; the exit code."""
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "leasemill", *arguments])
    return ended.value.code


def test_enqueue_needs_no_app_and_goes_to_the_store_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert manage("enqueue", "notify", "--args", '{"order_id": 7}', "--json") == 0
    job_id = json.loads(capsys.readouterr().out)["id"]
    assert manage("jobs", "show", job_id, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["kind"], shown["queue"], shown["state"]) == ("notify", "shipping", "ready")


def test_help_shows_the_command_as_it_is_written_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert manage("worker", "--help") == 0
    assert "Usage: manage.py leasemill worker [OPTIONS]\n" in capsys.readouterr().out
    assert manage("enqueue", "--help") == 0
    assert "Usage: manage.py leasemill enqueue [OPTIONS] KIND\n" in capsys.readouterr().out


def test_exit_codes_are_those_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert manage("enqueue", "unknown") == 1
    assert "declares no job 'unknown'" in capsys.readouterr().err
    assert manage("jobs", "show", "nothing") == 1
    assert manage("queues", "--wrong") == 2


def test_a_wrong_setting_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    with override_settings(LEASEMILL={"DATABASE": "lite"}):
        assert manage("jobs", "list") == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Error: LEASEMILL[\"DATABASE\"] is 'lite', a database of sqlite")


def test_another_store_can_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert manage("enqueue", "notify", "--args", '{"order_id": 7}', "--url", f"file:{tmp_path}") == 0
    assert manage("stats", "--url", f"file:{tmp_path}", "--json") == 0
    capsys.readouterr()
    assert manage("jobs", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == []


def test_call_command_raises_what_the_command_line_would_print() -> None:
    call_command("leasemill", "db", "status", "--json")
    with pytest.raises((NotFound, click.ClickException)):
        call_command("leasemill", "jobs", "show", "nothing")


def test_a_worker_runs_the_jobs_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    order = Order.objects.create(article="book")
    assert manage("enqueue", "notify", "--args", json.dumps({"order_id": order.pk})) == 0
    assert manage("worker", "--drain", "--concurrency", "2") == 0
    assert "worker started" in capsys.readouterr().err
    order.refresh_from_db()
    assert order.state == "notified"


def test_a_worker_prints_a_line_of_a_configured_logger_once(capsys: pytest.CaptureFixture[str]) -> None:
    logger, kept = logging.getLogger("django"), logging.getLogger("django").handlers[:]
    logger.handlers[:] = [logging.StreamHandler(sys.stderr), mail := logging.NullHandler()]
    try:
        leave_console_to_worker()
        assert logger.handlers == [mail]
    finally:
        logger.handlers[:] = kept
