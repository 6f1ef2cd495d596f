"""The map of the project shows what is there."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT, inline_code

MAP = ROOT / "ARCHITECTURE.md"
DECISIONS = ROOT / "docs" / "decisions"


def test_every_path_on_the_map_is_there() -> None:
    paths = {code for code in inline_code(MAP) if re.fullmatch(r"[\w./-]+(\.py|\.md|/[\w-]+)", code)}
    assert len(paths) > 40
    assert [
        path for path in sorted(paths) if not any((root / path).exists() for root in (ROOT, ROOT / "src/leasemill"))
    ] == []


def test_every_part_of_the_package_is_on_the_map() -> None:
    text = MAP.read_text()
    parts = [
        path for path in (ROOT / "src/leasemill").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    assert [path.name for path in parts if not path.name.startswith("__") and path.stem not in text] == []


def test_every_decision_is_in_the_index() -> None:
    index = (DECISIONS / "0001-record-decisions.md").read_text()
    assert [page.name for page in DECISIONS.glob("*.md") if f"({page.name})" not in index] == []
