"""The map of the project shows what is there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, inline_code

MAP = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "src" / "leasemill"
DECISIONS = ROOT / "docs" / "decisions"
ONE_PAGE = 90


def tree() -> dict[str, list[str]]:
    """The names under `src/leasemill/` on the map: each part with what its line names in it, remarks left out."""
    lines = MAP.read_text().partition("```\nsrc/leasemill/\n")[2].partition("\ntests/")[0].splitlines()
    parts: dict[str, list[str]] = {}
    for line in lines:
        part, _, rest = line.strip().partition(" ")
        parts[part] = re.sub(r"\([^)]*\)", "", rest).split()
    return parts


def test_the_map_is_one_page() -> None:
    assert len(MAP.read_text().splitlines()) <= ONE_PAGE


def test_every_path_on_the_map_is_there() -> None:
    """Paths begin at the root, or in the part that their column is about."""
    paths = {code for code in inline_code(MAP) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+", code)}
    assert len(paths) > 8
    parts = (ROOT, PACKAGE, PACKAGE / "kernel", PACKAGE / "store/postgres")
    assert [path for path in sorted(paths) if not any((part / path).exists() for part in parts)] == []


def test_every_file_on_the_map_is_there() -> None:
    package = {f"/{path.relative_to(PACKAGE).as_posix()}" for path in PACKAGE.rglob("*")}
    named = set(re.findall(r"(?<![\w/])(?!src/|tests/)[\w/]+\.(?:py|sql)\b", MAP.read_text()))
    assert len(named) > 25
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in package)} == set()


def test_the_map_shows_every_part_of_the_package_and_nothing_else() -> None:
    parts = {
        path.name + "/" if path.is_dir() else path.stem
        for path in PACKAGE.iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__")) or (path / "__init__.py").exists()
    }
    assert set(tree()) == parts


def test_every_folder_that_the_map_names_in_a_part_is_there() -> None:
    named = [(part, name) for part, names in tree().items() for name in names if name.endswith("/")]
    assert len(named) > 1
    assert [(part, name) for part, name in named if not (PACKAGE / part / name).is_dir()] == []


def test_the_index_of_the_documentation_leads_to_every_page() -> None:
    docs = ROOT / "docs"
    index = (docs / "README.md").read_text()
    pages = [*docs.glob("*.md"), *docs.glob("guides/*.md"), *docs.glob("reference/*.md")]
    assert len(pages) > 30
    missing = [page.name for page in pages if f"({page.relative_to(docs).as_posix()})" not in index]
    assert missing == ["README.md"]


def test_every_decision_is_in_the_index() -> None:
    index = (DECISIONS / "0001-record-decisions.md").read_text()
    assert [page.name for page in DECISIONS.glob("*.md") if f"({page.name})" not in index] == []


def test_every_statement_that_the_page_on_postgresql_describes_is_there() -> None:
    text = (ROOT / "docs/postgres.md").read_text()
    section = text.partition("## Statement by statement")[2].partition("\n## ")[0]
    named = {name for names in re.findall(r"\*\*([a-z_, ]+)\*\*", section) for name in names.split(", ")}
    assert len(named) > 25
    verbs = {path.stem for path in (PACKAGE / "store/postgres").rglob("*.sql")} | {"commit"}
    assert named - verbs == set()
