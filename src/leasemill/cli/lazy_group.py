"""A click group whose subcommands are imported when they run, not when they are listed.

Every error becomes one message and an exit code. A traceback is shown with --debug, or LEASEMILL_DEBUG=1.
"""

import errno
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from leasemill.errors import Broken, Invalid, LeasemillError, Unavailable, WorkerStuck
from leasemill.operator.wording import did_you_mean

EXIT_REFUSED = 1
EXIT_WRONG_CALL = 2
EXIT_UNAVAILABLE = 3
EXIT_BROKEN = 4
EXIT_STUCK = 5
EXIT_UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h
DEBUG_VARIABLE = "LEASEMILL_DEBUG"


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a command for a misspelt one. click's suggestion knows only commands that are imported."""
        name = args[0]
        if name not in self.lazy_commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}{did_you_mean(name, self.lazy_commands) or '.'}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except LeasemillError as error:
            raise self._failed(ctx, str(error), _exit_code(error)) from None
        except Exception as error:  # the entry of the command line
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of the pipe has closed it, as `head` does; click exits quietly
            from leasemill.store.system import out_of_descriptors  # seldom needed

            sentence = out_of_descriptors(error)
            if sentence is not None:
                raise self._failed(ctx, sentence, EXIT_UNAVAILABLE) from None
            raise self._failed(ctx, _unexpected(error), EXIT_UNEXPECTED) from None

    def _failed(self, ctx: click.Context, sentence: str, exit_code: int) -> "Failed":
        if ctx.params.get("debug"):
            traceback.print_exc()
        return Failed(sentence, exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from the table; click's own version would import each of them."""
        rows = [(name, self.lazy_commands[name].short_help) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Failed(click.ClickException):
    """An error as the command line shows it."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self._exit_code = exit_code

    def show(self, file: Any = None) -> None:
        click.echo(f"Error: {self.message}", err=True)
        sys.exit(self._exit_code)


def _unexpected(error: Exception) -> str:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"unexpected {what} (run it again as `leasemill --debug …` to see the traceback, and report it if it is a bug)"
    )


def _exit_code(error: LeasemillError) -> int:
    match error:
        case Unavailable():
            return EXIT_UNAVAILABLE
        case Broken():
            return EXIT_BROKEN
        case WorkerStuck():
            return EXIT_STUCK
        case Invalid():
            return EXIT_WRONG_CALL
        case _:
            return EXIT_REFUSED
