"""`manage.py leasemill …`: the whole command line, with the project's app and store."""

from __future__ import annotations

import logging
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from leasemill.cli import main
from leasemill.cli.store_options import Embedded
from leasemill.contrib.django import app

APP = "leasemill.contrib.django:app"


class LeasemillCommand(BaseCommand):
    help = "Run a worker, enqueue jobs, and operate queues: the command line of Leasemill with this project's store."
    requires_system_checks = ()
    """`manage.py check` is for deployments; a command that looks at jobs must answer although a check fails."""

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand the arguments to the `leasemill` command line, which has its own options and exit codes."""
        program, name, *arguments = argv
        started_by = getattr(sys.modules["__main__"], "__spec__", None)
        again = (program,) if started_by is None else ("-m", started_by.name.removesuffix(".__main__"))
        self._run(arguments, f"{program} {name}", (*again, name))

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """`call_command("leasemill", "jobs", "list")`."""
        self._run(arguments, "leasemill", None)

    def _run(self, arguments: list[str], name: str, program: tuple[str, ...] | None) -> None:
        if arguments[:1] == ["worker"]:
            leave_console_to_worker()
        embedded = Embedded(APP, lambda: app.url, program)
        try:
            main.main(arguments, prog_name=name, obj=embedded, standalone_mode=program is not None)
        finally:
            app.follow_settings()  # --url is for this call


def leave_console_to_worker() -> None:
    """A worker writes every line to the console, whichever logger it is of: the project's handlers would repeat it."""
    for name in ("django", *settings.LOGGING.get("loggers", ())):
        logger = logging.getLogger(name)
        for handler in logger.handlers[:] if logger.propagate else ():
            if getattr(handler, "stream", None) in {sys.stdout, sys.stderr}:
                logger.removeHandler(handler)


Command = LeasemillCommand
"""The name that Django looks for."""
