"""The store that a command opens, and who acts on it.

One order for all commands: `--url`, then the URL or store the app's code names (where a command loads an app, or runs
inside a framework), then LEASEMILL_URL, then the folder `.leasemill` in the working directory.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias

import click
from click.core import ParameterSource

from leasemill.errors import Invalid, NotFound, Refused
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.url import DEFAULT_URL, URL_VARIABLE, choose_url

Command: TypeAlias = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Embedded:
    """The command line inside a framework's, whose app and store it uses: the `obj` of click's context."""

    app: str
    """The app, as MODULE:APP."""
    url: Callable[[], str]
    program: tuple[str, ...] | None
    """The arguments that make Python start the framework's command line again; None if a program called it."""


class AppArgument(click.Argument):
    """The argument MODULE:APP, which a command inside a framework does not take."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [] if isinstance(ctx.obj, Embedded) else super().get_usage_pieces(ctx)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if not isinstance(ctx.obj, Embedded):
            super().add_to_parser(parser, ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        if isinstance(ctx.obj, Embedded):
            return ctx.obj.app, ParameterSource.DEFAULT
        return super().consume_value(ctx, opts)


app_argument = click.argument("app", cls=AppArgument, metavar="MODULE:APP")


def _chosen_url(context: click.Context, _parameter: click.Parameter, url: str | None) -> str:
    if url is None and isinstance(context.obj, Embedded):
        return context.obj.url()
    return choose_url(url)


url_option = click.option(
    "--url",
    callback=_chosen_url,
    help=f"The store. Default: {URL_VARIABLE}, then {DEFAULT_URL}.",
)
app_url_option = click.option(
    "--url", help=f"The store. Default: the app's own URL, then {URL_VARIABLE}, then {DEFAULT_URL}."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Reason(click.types.StringParamType):
    """A text. If it is missing, the error message says what it is for."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return (
            "Say why you do this: it is recorded in the audit trail, with your name, and `leasemill actions` shows it."
        )


reason_option = click.option(
    "--reason",
    required=True,
    type=Reason(),
    help="Why you do this: recorded in the audit trail, which `leasemill actions` shows.",
)


def operator_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


by_option = click.option("--by", default=operator_name, help="Who does this. Default: the name of the current user.")


def limit_option(what: str = "") -> Callable[[Command], Command]:
    help_text = f"List at most this many{what and ' ' + what}."
    return click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help=help_text)


def with_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Return the command with these options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def on_store(command: Command) -> Command:
    """Add the options --url and --json. The command is called with the opened store."""

    @wraps(command)
    def run(url: str, **given: Any) -> None:
        with opened(url) as store:
            command(store, **given)

    return with_options(run, url_option, json_option)


redact_option = click.option(
    "--redact",
    multiple=True,
    metavar="FIELD",
    help="Hide values under this key, in addition to those that look like secrets; a regular expression, matched "
    "anywhere in the key; may be repeated.",
)


def acting_on_store(command: Command) -> Command:
    """Add those of `on_store`, and --reason and --by for the audit trail."""
    return with_options(on_store(command), reason_option, by_option)


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """Open a store that exists: a command that reads must not create one."""
    refuse_memory(url)
    if url.startswith("file:"):
        from leasemill.store.file.disk import holds_log, unavailable
        from leasemill.store.file.folder import refuse_foreign
        from leasemill.store.file.options import parse_folder_url

        folder = parse_folder_url(url)[0]
        if not holds_log(folder):
            if folder.is_file():
                raise Invalid(f"{folder} is a file, not a folder: name another store with --url")
            if folder.is_dir():
                try:
                    refuse_foreign(folder)
                except OSError as error:
                    raise unavailable(folder, error) from error
            raise NotFound(f"there are no jobs in {folder} yet: enqueue one, or name the store of your app with --url")
    with open_store(url) as store:
        yield store


def refuse_memory(url: str) -> None:
    """Refuse a memory: store. The command would lose what it wrote, and cannot see another process's store."""
    if url.startswith("memory:"):
        raise Refused(
            "a memory: store lives inside one process and is gone when this command ends: "
            "name another store with --url, for example file:./.leasemill"
        )
