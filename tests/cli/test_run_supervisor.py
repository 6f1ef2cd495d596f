"""How the processes of a worker are started: with the options of the command, as click has read them."""

from __future__ import annotations

import click
import pytest

from leasemill.cli.run_supervisor import arguments_of, command_of, reload
from leasemill.cli.store_options import Embedded
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


@pytest.mark.parametrize(
    ("options", "named"), [("--processes=2", "--processes"), ("--drain", "--drain"), ("--max-jobs=5", "--max-jobs")]
)
def test_reload_is_refused_with_what_ends_a_process_or_runs_several(options: str, named: str) -> None:
    with pytest.raises(click.UsageError, match=f"leave out {named}"):
        reload(context(["tasks:app", "--reload", options]), "mill")
