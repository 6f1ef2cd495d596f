"""A click group whose subcommands are imported when they run, not when they are listed.

Errors of Leasemill end as one sentence and an exit code, never as a traceback.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from leasemill.errors import Broken, Invalid, LeasemillError, Unavailable

EXIT_REFUSED = 1
EXIT_WRONG_CALL = 2
EXIT_UNAVAILABLE = 3
EXIT_BROKEN = 4


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a subcommand lives (`module:attribute`) and the line `--help` shows for it."""

    target: str
    short_help: str

    def load(self) -> click.Command:
        module_name, _, attribute = self.target.partition(":")
        command = getattr(import_module(module_name), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is not a click command")
        return command


class LazyGroup(click.Group):
    def __init__(self, *args: Any, lazy_commands: dict[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy_command = self.lazy_commands.get(cmd_name)
        return lazy_command.load() if lazy_command else None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LeasemillError as error:
            raise Failed(error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from the table; click's own version would import each of them."""
        rows = [(name, self.lazy_commands[name].short_help) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Failed(click.ClickException):
    """An error of Leasemill, as the command line tells it."""

    def __init__(self, error: LeasemillError) -> None:
        super().__init__(str(error))
        self._error = error

    def show(self, file: Any = None) -> None:
        click.echo(f"Error: {self.message}", err=True)
        sys.exit(_exit_code(self._error))


def _exit_code(error: LeasemillError) -> int:
    match error:
        case Unavailable():
            return EXIT_UNAVAILABLE
        case Broken():
            return EXIT_BROKEN
        case Invalid():
            return EXIT_WRONG_CALL
        case _:
            return EXIT_REFUSED
