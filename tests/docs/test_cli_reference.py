"""The page about the command line has every command and every option, as the program has them."""

from __future__ import annotations

import re

import click
import pytest

from tests.docs.cli_reference import PAGE, commands, options, page


def test_the_page_is_what_the_program_says() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.docs.cli_reference"


def test_every_command_is_on_the_page_once() -> None:
    words = [" ".join(("leasemill", *path)) for path, _ in commands()]
    assert len(words) > 50
    assert re.findall(r"^#{2,3} (leasemill.*)$", PAGE.read_text(), re.MULTILINE) == words


@pytest.mark.parametrize(("path", "command"), [pytest.param(*one, id=" ".join(one[0])) for one in commands()])
def test_every_command_and_every_option_is_explained(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help
    assert [one.opts for one in options(command) if not one.help] == []
