"""The catalogue is complete: every failure has a page, tests of three kinds, a line in the index, rules that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.test_snippets import wrong_commands
from tests.rule_coverage import stated_rules

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "failures" / "README.md"
PAGES = sorted(page for page in INDEX.parent.glob("*.md") if page != INDEX)
SECTIONS = ("**Seen as**", "**Would break**", "**What prevents harm.**", "**What to do.**", "**Tests**")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def file_of(page: Path) -> Path:
    return ROOT / "tests" / "failures" / f"test_{page.stem.replace('-', '_')}.py"


def rules() -> set[str]:
    documents = (ROOT / "docs" / "contract.md", ROOT / "docs" / "log-format.md")
    return {rule_id for document in documents for rule_id in stated_rules(document.read_text())}


@every_page
def test_every_failure_is_reproduced_prevented_and_recovered_from(page: Path) -> None:
    tree = ast.parse(file_of(page).read_text())
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    for kind in ("reproduce", "prevent", "recover"):
        assert any(name.startswith(f"test_{kind}_") for name in tests), f"{file_of(page).name} has no test_{kind}_…"


@every_page
def test_every_page_says_the_same_five_things(page: Path) -> None:
    text = page.read_text()
    assert [section for section in SECTIONS if text.count(section) != 1] == []
    assert [text.index(section) for section in SECTIONS] == sorted(text.index(section) for section in SECTIONS)
    assert f"`tests/failures/{file_of(page).name}" in text


@every_page
def test_every_page_names_rules_that_exist_and_its_line_in_the_index_the_same(page: Path) -> None:
    would_break = page.read_text().partition("**Would break**")[2].partition("\n\n")[0]
    named = set(re.findall(r"\b[A-Z]\d+\b", would_break))
    assert named
    assert named <= rules()
    line = next(line for line in INDEX.read_text().splitlines() if f"({page.name})" in line)
    assert set(re.findall(r"\b[A-Z]\d+\b", line)) <= named


@pytest.mark.parametrize("page", [INDEX, *PAGES], ids=lambda page: page.stem)
def test_every_command_a_page_names_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_commands(page, monkeypatch) == []


def test_every_test_file_of_a_failure_has_a_page() -> None:
    known = {file_of(page) for page in PAGES} | {Path(__file__)}
    assert sorted(set(Path(__file__).parent.glob("test_*.py")) - known) == []
