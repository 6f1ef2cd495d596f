"""The pages people copy from, cut into blocks, and the commands they name.

The language of a fenced block decides what becomes of it:

    python   is run; with title="tasks.py" it is a file of that name instead
    pycon    is run as a session: what follows a prompt is compared
    text     is what the python block above it prints
    console  each `$ command` is run, and what follows it compared
    others   (ini, dockerfile) cannot be run here: the commands they name must be right

Blocks of a page share a folder and a namespace, from top to bottom. In what is compared `...` stands for any text in a
line, and a line of `...` for any lines. What differs from run to run may be shown as it looked once: ids, times,
durations, workers' names, and how wide columns are. A port that a command names (`127.0.0.1:7411`) is replaced by a
free one while it runs, so that pages, and runs of the tests, can listen at the same time.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/guides/*.md")),
    *sorted(ROOT.glob("examples/*/README.md")),
]

RUN: Final = frozenset({"python", "pycon", "text", "console"})
CHECKED: Final = frozenset({"ini", "dockerfile"})

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="(?P<title>[^"]+)"')
_INLINE = re.compile(r"`([^`\n]+)`")
_ADDRESS = re.compile(r"\b(?:127\.0\.0\.1|0\.0\.0\.0|localhost):(?P<port>\d{4})\b")
_PROGRAM = re.compile(r"(?:\S*/)?leasemill")
_OPERATORS = frozenset("();<>|&")
_VARYING = [
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3,6}Z"), "TIME"),
    (re.compile(r"\b[\w-]+-\d+-[0-9a-f]{8}\b"), "WORKER"),
    (re.compile(r"\b\d+\.\d m?s\b"), "SPAN"),
    (re.compile(r" {2,}"), "  "),
]


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    """The number of the first line inside the fence."""
    language: str
    title: str | None
    text: str
    before: str
    """The last line of prose above it."""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A `$ ` line of a console block, with what the page shows that it prints."""

    line: int
    text: str
    expected: str


def blocks(page: Path) -> list[Block]:
    content = page.read_text()
    found = []
    for match in _FENCE.finditer(content):
        info, _, attributes = match["info"].partition(" ")
        title = _TITLE.fullmatch(attributes.strip())
        prose = content[: match.start()].rstrip().rpartition("\n")[2]
        line = content.count("\n", 0, match.start("text")) + 1
        found.append(Block(page, line, info, title and title["title"], match["text"], prose))
    return found


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            found.append(Command(number, line[2:], ""))
        elif found and found[-1].text.endswith("\\") and not found[-1].expected:
            found[-1] = Command(found[-1].line, f"{found[-1].text}\n{line}", "")
        else:
            assert found, f"{block.where}: a console block begins with a `$ command`"
            found[-1] = Command(found[-1].line, found[-1].text, f"{found[-1].expected}{line}\n")
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether it was printed as shown, `...` standing for anything."""
    pattern = ""
    for line in map(_steady, expected.splitlines()):
        pattern += r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*?") + r"\n"
    return re.fullmatch(pattern, "".join(f"{_steady(line)}\n" for line in printed.splitlines())) is not None


def ports(text: str) -> set[str]:
    """The ports that a command listens on or connects to; 0 is free already."""
    return {match["port"] for match in _ADDRESS.finditer(text)}


def with_ports(text: str, replaced: Mapping[str, str]) -> str:
    """The text with other ports in it."""
    return re.sub(r"\b\d{4,5}\b", lambda match: replaced.get(match[0], match[0]), text)


def _steady(line: str) -> str:
    """The line without what differs from run to run."""
    for varying, stands_for_it in _VARYING:
        line = varying.sub(stands_for_it, line)
    return line.rstrip()


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def inline_code(page: Path) -> list[str]:
    return _INLINE.findall(prose(page))


def run_commands(page: Path) -> list[list[str]]:
    """Every call of `leasemill` that a page runs: its arguments."""
    consoles = [block for block in blocks(page) if block.language == "console"]
    return [call for block in consoles for command in commands(block) for call in calls(command.text)]


def named_commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every call of `leasemill` that a page names without running it: where, and its arguments."""
    for code in inline_code(page):
        if code.startswith("leasemill "):
            yield f"{page.relative_to(ROOT)}: `{code}`", shlex.split(code)[1:]
    for block in blocks(page):
        if block.language in CHECKED:
            lines = block.text.replace("\\\n", " ").splitlines()
            yield from ((block.where, call) for line in lines for call in calls(_unquoted(line)))


def _unquoted(line: str) -> str:
    """`CMD ["leasemill", "health"]` as a shell would have it."""
    array = re.search(r"\[\s*\".*\"\s*\]", line)
    return shlex.join(json.loads(array[0])) if array else line.partition("=")[2] if "=" in line else line


def calls(line: str) -> Iterator[list[str]]:
    """The calls of `leasemill` in a line of shell: their arguments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    call: list[str] | None = None
    for token in lexer:
        if call is None and _PROGRAM.fullmatch(token):
            call = []
        elif call is not None and token[0] in _OPERATORS:
            yield call
            call = None
        elif call is not None:
            call.append(token)
    if call is not None:
        yield call
