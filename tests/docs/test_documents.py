"""The page about the documents: what it names exists, and no rule that has a number is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, inline_code
from tests.rule_coverage import stated_rules

PAGE = ROOT / "docs" / "documents.md"
ROOTS = (ROOT, ROOT / "src" / "leasemill", ROOT / "src" / "leasemill" / "testing")
TEXT = PAGE.read_text()
CODE = inline_code(PAGE)
PROOFS = sorted({code for code in CODE if re.fullmatch(r"[\w./-]+::\w+", code)})
FILES = sorted({code for code in CODE if re.fullmatch(r"[\w./-]+\.py", code)})


def found(name: str) -> Path | None:
    return next((root / name for root in ROOTS if (root / name).is_file()), None)


def test_the_page_names_proofs_and_files() -> None:
    assert len(PROOFS) > 80
    assert len(FILES) > 8


@pytest.mark.parametrize("proof", PROOFS)
def test_every_proof_exists(proof: str) -> None:
    name, test = proof.split("::")
    path = found(name)
    assert path is not None, f"there is no {name}"
    assert re.search(rf"^ *(async )?def {test}\(", path.read_text(), re.MULTILINE), f"{name} has no {test}"


def test_every_file_exists() -> None:
    assert [name for name in FILES if found(name) is None] == []


def test_every_rule_is_one_of_the_contract() -> None:
    named = set(re.findall(r"\b[IECLXFNO]\d{1,2}\b", TEXT))
    stated = stated_rules((ROOT / "docs" / "contract.md").read_text())
    assert named - set(stated) == set()


def test_every_rule_of_the_outbox_is_there() -> None:
    guide = (ROOT / "docs" / "guides" / "outbox.md").read_text()
    rules = re.findall(r"^\| (RULE-020-\d{3}) ", guide, re.MULTILINE)
    assert re.findall(r"^\| (RULE-020-\d{3}) ", TEXT, re.MULTILINE) == rules


def test_every_invariant_of_the_work_lease_is_there() -> None:
    part = TEXT.partition("\n## Work Lease")[2].partition("\n## ")[0]
    assert re.findall(r"^\| invariant (\d)", part, re.MULTILINE) == list("123456")
