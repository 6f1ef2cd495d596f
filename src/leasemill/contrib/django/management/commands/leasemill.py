"""`manage.py leasemill …`: the whole command line, with the project's app and store."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from leasemill.cli import main
from leasemill.cli.opening import Embedded
from leasemill.contrib.django import app

APP = "leasemill.contrib.django:app"


class LeasemillCommand(BaseCommand):
    help = "Run a worker, enqueue jobs, and operate queues: the command line of Leasemill with this project's store."
    requires_system_checks = ()
    """`manage.py check` is for deployments; a command that looks at jobs must answer although a check fails."""

    def run_from_argv(self, argv: list[str]) -> None:
        """What follows `leasemill` is read by its own command line, with its own options and exit codes."""
        program, name, *arguments = argv
        self._run(arguments, f"{program} {name}", is_standalone=True)

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """`call_command("leasemill", "jobs", "list")`."""
        self._run(arguments, "leasemill", is_standalone=False)

    def _run(self, arguments: list[str], program: str, *, is_standalone: bool) -> None:
        embedded = Embedded(APP, lambda: app.url)
        try:
            main.main(arguments, prog_name=program, obj=embedded, standalone_mode=is_standalone)
        finally:
            app.follow_settings()  # --url is for this call


Command = LeasemillCommand
"""The name that Django looks for."""
