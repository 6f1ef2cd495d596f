"""The house is in order: versions agree, the lock is complete, links lead somewhere, files stay small."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import leasemill
from leasemill.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCES = sorted(
    path for folder in ("src", "tests", "benchmarks", "examples") for path in ROOT.glob(f"{folder}/**/*.py")
)
MAX_LINES = {"src": 400, "tests": 700, "benchmarks": 700, "examples": 700}
USED_TWICE = {"JobCancelled", "Release"}
"""An error and an event; what a handler raises and what a worker asks: users and the log know them by these names."""


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-bench.lock")
"""Each holds what the one before it does."""


def names(requirements: list[Any]) -> set[str]:
    """Of the packages that are asked for; a group that includes another names it as a table."""
    found = [re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) for text in requirements if isinstance(text, str)]
    assert all(found), requirements
    return {canonical(match[0]) for match in found if match}


def declared_names() -> dict[str, set[str]]:
    """What each lock file must name."""
    document = pyproject()
    groups = document["dependency-groups"]
    run = names(
        [*document["project"]["dependencies"], *groups["build"], *document["build-system"]["requires"]],
    )
    extras = [one for extra in document["project"]["optional-dependencies"].values() for one in extra]
    dev = run | names([*groups["dev"], *extras])
    return dict(zip(LOCKS, (run, dev, dev | names(groups["bench"])), strict=True))


def lock_lines(lock: str) -> list[str]:
    return (ROOT / lock).read_text().splitlines()


def pins(lock: str) -> set[str]:
    """`name==version` of every package, whatever platform it is for."""
    return {line.split()[0] for line in lock_lines(lock) if re.match(r"[a-z0-9].*==", line)}


def links(page: Path) -> Iterator[str]:
    """Targets of the page's relative links, code blocks left out, anchors cut off."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            yield path


def test_the_package_and_the_project_have_one_version() -> None:
    assert leasemill.__version__ == pyproject()["project"]["version"]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_every_dependency_that_is_declared_for_it(lock: str) -> None:
    locked = {canonical(pin.partition("==")[0]) for pin in pins(lock)}
    assert declared_names()[lock] - locked == set()


def test_every_lock_agrees_with_the_larger_ones() -> None:
    run, dev, bench = map(pins, LOCKS)
    assert run < dev < bench


def test_what_is_only_measured_is_locked_for_the_benchmarks_alone() -> None:
    measured = names(pyproject()["dependency-groups"]["bench"])
    locked = {canonical(pin.partition("==")[0]) for pin in pins("requirements-dev.lock")}
    assert measured & locked == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_a_hash(lock: str) -> None:
    requirements = re.split(r"\n(?=\S)", "\n".join(lock_lines(lock)))
    without_hash = [text for text in requirements if "==" in text and "--hash=sha256:" not in text]
    assert without_hash == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_index_and_no_place(lock: str) -> None:
    places = re.compile(r"://|--(extra-)?index|--find-links|^-[ief]\s|\s@\s|^[./]")
    assert [line for line in lock_lines(lock) if places.search(line)] == []


def test_the_readme_of_the_package_has_no_link_that_a_package_index_cannot_follow() -> None:
    hook = pyproject()["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = "".join((ROOT / fragment["path"]).read_text() for fragment in hook["fragments"])
    for change in hook["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    assert "Handlers" in text
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {re.escape(name)} ", result.output, flags=re.MULTILINE)
        assert command.short_help in " ".join(result.output.split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_explains_itself(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0, result.output


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["no-such-command"])
    assert result.exit_code == 2
    assert "no-such-command" in result.output


def test_help_imports_no_command() -> None:
    program = (
        "import sys\n"
        "from leasemill.cli import COMMANDS, main\n"
        "main(['--help'], standalone_mode=False)\n"
        "modules = {command.target.partition(':')[0] for command in COMMANDS.values()}\n"
        "sys.exit(sorted(modules & set(sys.modules)) or None)\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_version_speaks_to_people_and_to_scripts() -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["version"]).output == f"leasemill {leasemill.__version__}\n"
    document = json.loads(runner.invoke(main, ["version", "--json"]).output)
    assert document["leasemill"] == leasemill.__version__


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


def test_no_source_file_is_too_long_to_read() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES[name.partition("/")[0]]} == {}


def test_no_two_classes_of_the_package_have_one_name() -> None:
    texts = [path.read_text() for path in SOURCES if path.is_relative_to(ROOT / "src")]
    count = Counter(name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE))
    assert {name for name, times in count.items() if times > 1} == USED_TWICE


@pytest.mark.parametrize("package", ["events", "model"])
def test_nobody_imports_a_part_of_the_kernels_nouns_but_the_package_itself(package: str) -> None:
    folder = ROOT / "src" / "leasemill" / "kernel" / package
    part = re.compile(
        rf"leasemill\.kernel\.{package}\.\w|leasemill\.kernel\.{package} import ({'|'.join(parts(folder))})\b"
    )
    others = [path for path in SOURCES if not path.is_relative_to(folder)]
    assert [str(path.relative_to(ROOT)) for path in others if part.search(path.read_text())] == []


def parts(folder: Path) -> list[str]:
    found = [path.stem for path in folder.glob("[a-z]*.py")]
    assert found
    return found
