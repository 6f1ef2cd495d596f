"""Every block of the README, the guides and the examples does what the page shows."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import click
import pytest

from leasemill.cli import main
from tests.docs.pages import (
    CHECKED,
    PAGES,
    ROOT,
    RUN,
    Block,
    blocks,
    commands,
    inline_code,
    matches,
    named_commands,
    run_commands,
)
from tests.docs.running import Mismatch, PageRun

Follow: TypeAlias = Callable[[Path], list[Block]]

GUIDES = ROOT / "docs" / "guides"
PAGE_TEST = "test_a_page_does_what_it_says"
NOT_ON_THE_PAGE = {"demo": "takes most of a minute: make demo"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
TYPED_PAGES = [*PAGES, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/failures/*.md"))]
"""Pages whose commands somebody types: also those that are not run."""


def followed(page: Path, folder: Path) -> list[Block]:
    """Follow a page in a folder of its own: empty, or a copy of the example's."""
    if page.parent.parent.name == "examples":
        shutil.copytree(page.parent, folder, ignore=shutil.ignore_patterns("__pycache__", ".leasemill"))
    else:
        folder.mkdir()
    with PageRun(page, folder) as run:
        run.run()
    return run.ran


@pytest.fixture(scope="module")
def follow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Follow]:
    """Pages are processes most of the time, so two are followed at once: all that this run asks for, longest first."""
    base = tmp_path_factory.mktemp("readers")
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = [Path(str(item.callspec.params["page"])) for item in tests if item.originalname == PAGE_TEST]
    if "PYTEST_XDIST_WORKER" in os.environ:
        asked = []  # others ask for them too
    with ThreadPoolExecutor(2) as pool:

        def begin(page: Path) -> Future[list[Block]]:
            return pool.submit(followed, page, base / name_of(page).replace("/", "-"))

        begun = {page: begin(page) for page in sorted(asked, key=lambda page: -page.read_text().count("\n$ "))}
        yield lambda page: (begun.get(page) or begin(page)).result()


@every_page
@pytest.mark.timeout(600)  # some have seventy commands, each of which has a limit of its own
def test_a_page_does_what_it_says(page: Path, follow: Follow) -> None:
    assert follow(page) == [block for block in blocks(page) if block.language not in CHECKED]


@every_page
def test_every_block_has_a_language_that_says_what_becomes_of_it(page: Path) -> None:
    found = blocks(page)
    assert page.read_text().count("\n```") == 2 * len(found), "a fence is not closed, or is indented"
    assert [block.where for block in found if block.language not in RUN | CHECKED] == []


@every_page
def test_a_reader_is_told_the_name_of_a_file_before_its_content(page: Path) -> None:
    files = [block for block in blocks(page) if block.title is not None]
    assert [block.where for block in files if f"`{block.title}`" not in block.before] == []


@pytest.mark.parametrize("page", TYPED_PAGES, ids=name_of)
def test_every_command_a_page_names_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_commands(page, monkeypatch) == []


def wrong_commands(page: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that a page names and click refuses, and why."""
    monkeypatch.setattr("leasemill.cli.wal.holds_log", lambda _path: True)  # a page names folders of its reader
    wrong = []
    for where, arguments in named_commands(page):
        try:
            parse(main, "leasemill", arguments)
        except click.UsageError as error:
            wrong.append(f"{where}: {error.format_message()}")
    return wrong


def parse(command: click.Command, name: str, arguments: list[str]) -> None:
    """Read a command line as click would, carrying out nothing. A command named alone stands for itself."""
    if not arguments or arguments == ["--help"]:
        return
    context = command.make_context(name, list(arguments))
    left = [*context._protected_args, *context.args]
    if isinstance(command, click.Group) and (left or not command.invoke_without_command):
        found, subcommand, rest = command.resolve_command(context, left)
        assert subcommand is not None
        parse(subcommand, str(found), rest)


@every_page
def test_blocks_that_cannot_be_run_name_commands_that_can_be_checked(page: Path) -> None:
    named = {where for where, _ in named_commands(page)}
    assert [block.where for block in blocks(page) if block.language in CHECKED and block.where not in named] == []


@every_page
def test_every_variable_a_page_names_is_read_somewhere(page: Path) -> None:
    named = set(re.findall(r"\bLEASEMILL_[A-Z_]+\b", page.read_text()))
    source = "".join(path.read_text() for path in ROOT.glob("src/leasemill/**/*.py"))
    assert [name for name in sorted(named) if f'"{name}"' not in source] == []


@every_page
def test_every_make_target_a_page_names_is_one(page: Path) -> None:
    named = {code.split()[1] for code in inline_code(page) if re.fullmatch(r"make [a-z-]+", code)}
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert named - targets == set()


def test_the_readme_leads_to_the_index_of_all_guides_and_to_the_examples() -> None:
    readme = (ROOT / "README.md").read_text()
    examples = [f"examples/{page.parent.name}/README.md" for page in ROOT.glob("examples/*/README.md")]
    assert [page for page in ["docs/README.md", *examples] if f"({page})" not in readme] == []


def test_the_first_job_is_five_lines_of_code() -> None:
    first = next(block for block in blocks(ROOT / "README.md") if block.title == "tasks.py")
    assert len([line for line in first.text.splitlines() if line.strip()]) <= 5


def test_the_page_about_the_command_line_runs_every_command() -> None:
    ran = [tuple(arguments) for arguments in run_commands(GUIDES / "cli.md")]
    missing = [path for path in leaf_commands(main) if not any(call[: len(path)] == path for call in ran)]
    assert [path for path in missing if path[0] not in NOT_ON_THE_PAGE] == []


def leaf_commands(group: click.Group) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield (name,)
            yield from ((name, *path) for path in leaf_commands(command))
        else:
            yield (name,)


# The mechanism itself: a page that lies must be found out -------------------------------------------------------


def written(tmp_path: Path, text: str) -> PageRun:
    page = tmp_path / "page.md"
    page.write_text(text)
    return PageRun(page, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "```console\n$ echo one\ntwo\n```\n",
        "```console\n$ echo one\n```\n",
        "```console\n$ exit 3\n```\n",
        "```console\n$ exit 3\n$ echo $?\n4\n```\n",
        "```console\n$ exit 3\n$ true\n```\n",
        "```python\nprint('one')\n```\n",
        "```python\nprint('one')\n```\n```text\ntwo\n```\n",
        "```python\nraise ValueError\n```\n",
        "```pycon\n>>> 1 + 1\n3\n```\n",
        "```pycon\n1 + 1\n```\n",
        "```text\nout of nowhere\n```\n",
    ],
)
def test_a_page_that_is_not_so_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    with written(tmp_path, text) as run, pytest.raises(Mismatch):
        run.run()


def test_blocks_share_a_folder_and_a_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    text = (
        '`one.py`:\n```python title="one.py"\nvalue = 1\n```\n'
        "```python\nimport one\nprint(one.value, 'and more')\n```\n```text\n1 ... more\n```\n"
        "```pycon\n>>> one.value + 1\n2\n>>> two = 2\n```\n"
        '`one.py`:\n```python title="one.py"\nvalue = 3\n```\n'
        "```python\nimport one\nassert (one.value, two) == (3, 2)\n```\n"
        "```console\n$ cat one.py\nvalue = ...\n$ exit 3\n$ echo $?\n3\n```\n"
    )
    with written(tmp_path, text) as run:
        run.run()
    assert len(run.ran) == 7


def test_a_port_of_a_page_is_a_free_one_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    text = (
        "```console\n$ echo localhost:7411 --metrics 7411 7412 | tee used\nlocalhost:7411 --metrics 7411 7412\n"
        "$ echo http://127.0.0.1:7411/v1 >> used; tail -1 used\nhttp://127.0.0.1:7411/v1\n```\n"
    )
    with written(tmp_path, text) as run:
        run.run()
    port = re.search(r":(\d+)/v1", (tmp_path / "used").read_text())
    assert port is not None
    assert port[1] != "7411"
    assert (tmp_path / "used").read_text().splitlines()[0] == f"localhost:{port[1]} --metrics {port[1]} 7412"


@pytest.mark.parametrize(
    ("expected", "printed", "is_so"),
    [
        ("a...c\n", "abbbc\n", True),
        ("a...c\n", "ab\nc\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("a.c\n", "abc\n", False),
        ("", "", True),
        ("a\n", "a", True),
        ("2030-01-31T12:00:00.000Z  a\n", "2031-12-31T23:59:59.999Z    a\n", True),
        ("01a1e119-1be0-7337-a6e0-1c9b83844220 ran 1.0 ms\n", "01a1e11c-6fb7-7358-9f33-7bd05602e2bb ran 9.9 s\n", True),
        ("worker=mill-4711-31f64a6d\n", "worker=other-host-1-00000000\n", True),
        ("attempt 1\n", "attempt 2\n", False),
    ],
)
def test_only_what_may_differ_may_differ(expected: str, printed: str, is_so: bool) -> None:
    assert matches(expected, printed) is is_so


def test_a_command_may_go_on_in_the_next_line() -> None:
    block = Block(ROOT / "README.md", 1, "console", None, "$ echo \\\n    one\none\n$ true\n", "")
    assert [(command.text, command.expected) for command in commands(block)] == [
        ("echo \\\n    one", "one\n"),
        ("true", ""),
    ]
