"""How the processes of a worker are started: with the options of the command, as click has read them."""

from __future__ import annotations

import sys

import click
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.cli.opening import Embedded
from leasemill.cli.supervising import arguments_of, command_of, cores
from leasemill.cli.worker import worker

GIVEN = [
    *["tasks:app", "--queue", "mail=3", "--queue", "-odd", "--drain", "--processes", "4", "--concurrency=2"],
    *["--reaper-interval", "high-volume", "--max-memory", "1.5GB", "--worker-id", "mill", "--log-level", "error"],
]


def context(arguments: list[str], embedded: Embedded | None = None) -> click.Context:
    return worker.make_context("worker", arguments, obj=embedded)


def test_a_process_is_given_what_the_command_was_given_but_its_own_id() -> None:
    arguments = arguments_of(context(list(GIVEN)))
    assert sorted(arguments) == sorted(
        [
            *["tasks:app", "--queue=mail=3", "--queue=-odd", "--drain", "--processes=4", "--concurrency=2"],
            *["--reaper-interval=5", "--max-memory=1500000000B", "--log-level=error"],
        ]
    )
    again = context([*arguments, "--worker-id=mill.1", "--control=9"])
    first = context(list(GIVEN))
    assert {**again.params, "worker_id": "mill", "control": None} == first.params


def test_inside_a_framework_the_frameworks_program_is_started_again() -> None:
    embedded = Embedded("project:app", lambda: "file:jobs", ("manage.py", "leasemill"))
    assert command_of(context(["--processes=2"], embedded))[1:] == ["manage.py", "leasemill", "worker", "--processes=2"]


def test_a_command_that_a_program_called_has_nothing_to_start_again() -> None:
    with pytest.raises(click.UsageError, match=r"manage\.py leasemill worker"):
        command_of(context(["--processes=2"], Embedded("project:app", lambda: "file:jobs", None)))


def test_a_process_does_not_choose_its_core_itself() -> None:
    assert arguments_of(context(["tasks:app", "--processes=2", "--cpu-affinity"])) == ["tasks:app", "--processes=2"]
    assert cores(context(["tasks:app", "--processes=2"])) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "add --processes N"),
        (["--processes=1"], "add --processes N"),
        (["--processes=2", "--executor=process"], "leave out --executor process"),
    ],
)
def test_a_core_for_each_process_is_refused_where_it_would_do_harm(options: list[str], message: str) -> None:
    with pytest.raises(click.UsageError, match=message):
        cores(context(["tasks:app", "--cpu-affinity", *options]))


def test_more_processes_than_cores_are_refused_by_the_command() -> None:
    result = CliRunner().invoke(main, ["worker", "tasks:app", "--processes=100000", "--cpu-affinity"])
    assert result.exit_code == 2
    assert "for 100,000 processes: start fewer, or leave it out" in result.output or sys.platform != "linux"
