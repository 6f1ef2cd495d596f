"""The house is in order: versions agree, the lock is complete, links lead somewhere, files stay small."""

import json
import re
import subprocess
import sys
import tomllib
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
MAX_LINES = 700


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared_names() -> set[str]:
    document = pyproject()
    groups = [
        document["project"]["dependencies"],
        *document["project"]["optional-dependencies"].values(),
        *document["dependency-groups"].values(),
        document["build-system"]["requires"],
    ]
    names = set()
    for requirement in (requirement for group in groups for requirement in group):
        match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
        assert match, f"not a requirement: {requirement}"
        names.add(canonical(match[0]))
    return names


def lock_lines() -> list[str]:
    return (ROOT / "requirements.lock").read_text().splitlines()


def links(page: Path) -> Iterator[str]:
    """Targets of the page's relative links, code blocks left out, anchors cut off."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        path = target.partition("#")[0]
        if path and not re.match(r"[a-z]+:", path):
            yield path


def test_the_package_and_the_project_have_one_version() -> None:
    assert leasemill.__version__ == pyproject()["project"]["version"]


def test_the_lock_names_every_declared_dependency() -> None:
    locked = {canonical(line.partition("==")[0]) for line in lock_lines() if "==" in line}
    assert declared_names() - locked == set()


def test_every_locked_package_has_a_hash() -> None:
    requirements = re.split(r"\n(?=\S)", "\n".join(lock_lines()))
    without_hash = [text for text in requirements if "==" in text and "--hash=sha256:" not in text]
    assert without_hash == []


def test_the_lock_names_no_index_and_no_place() -> None:
    places = re.compile(r"://|--(extra-)?index|--find-links|^-[ief]\s|\s@\s|^[./]")
    assert [line for line in lock_lines() if places.search(line)] == []


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
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
