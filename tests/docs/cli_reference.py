"""The page about the command line, made from the commands: `python -m tests.docs.cli_reference` writes it."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from leasemill.cli import main
from tests.docs.pages import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "cli.md"
HEAD: Final = """# Command line

Every command with every option, made from what `--help` shows (`python -m tests.docs.cli_reference`). The
[guide](../guides/cli.md) shows them in use, with what they print. `leasemill COMMAND --help` shows the same in a
terminal. `python -m leasemill` and, in a Django project, `manage.py leasemill` are the same program.

These options are the same wherever they occur, and are not explained again below:

| option | |
|---|---|
"""
COMMON_FROM: Final = 10
"""An option that so many commands have, with the same words, is explained once, at the top of the page."""


def commands(
    command: click.Command = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it, a group before what is in it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            if one is not None and not one.hidden:
                yield from commands(one, (*path, name))


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def page() -> str:
    found = list(commands())
    counted = Counter(_row(one) for _, command in found for one in options(command))
    common = {row for row, count in counted.items() if count >= COMMON_FROM}
    return HEAD + "".join(sorted(common)) + "".join(_entry(path, command, common) for path, command in found)


def _entry(path: tuple[str, ...], command: click.Command, common: set[str]) -> str:
    words = " ".join(("leasemill", *path))
    usage = " ".join((words, *command.collect_usage_pieces(click.Context(command, info_name=words))))
    own = [_row(one) for one in options(command) if _row(one) not in common]
    shared = [f"`{one.opts[0]}`" for one in options(command) if _row(one) in common]
    parts = [f"{'#' * max(2, len(path) + 1)} {words}", f"```text\n{usage}\n```", _text(command)]
    parts += ["| option | |\n|---|---|\n" + "".join(own).rstrip()] if own else []
    parts += [f"And {', '.join(shared)}."] if shared else []
    return "".join(f"\n{part}\n" for part in parts)


def _row(option: click.Option) -> str:
    return f"| {_named(option)} | {_help(option)} |\n"


def _text(command: click.Command) -> str:
    """Its docstring; what is set out in lines stays as it is."""
    text = inspect.cleandoc(command.help or "")
    head, mark, lines = text.partition("\b\n")
    return f"{head}```text\n{lines}\n```" if mark else text


def _named(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    values = "\\|".join(option.type.choices) if isinstance(option.type, click.Choice) else _metavar(option)
    return f"{names} `{values}`"


def _metavar(option: click.Option) -> str:
    return option.make_metavar(click.Context(main)).removesuffix(" RANGE").replace("|", "\\|")


def _help(option: click.Option) -> str:
    extra = option.get_help_extra(click.Context(main))
    notes = [f"default: {extra['default']}"] if "default" in extra else []
    notes += [extra["range"]] if "range" in extra else []
    notes += ["required"] if option.required else []
    text = re.sub(r"\s+", " ", option.help or "").replace("|", "\\|")
    return f"{text} ({'; '.join(notes)})".strip() if notes else text


if __name__ == "__main__":
    PAGE.write_text(page())
