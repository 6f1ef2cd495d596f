"""The mutations can still be made; whether tests catch them is reported by `make mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel.mutations import TABLE as KERNEL
from tests.lab.mutations import ROOT, Mutation, Table, naming
from tests.store.postgres.mutations import TABLE as SQL

TABLES = {"kernel": KERNEL, "sql": SQL}
AT_LEAST = 25
EVERY = [pytest.param(table, one, id=one.name) for table in TABLES.values() for one in table.mutations]


@pytest.mark.parametrize(("table", "one"), EVERY)
def test_a_mutation_finds_its_text_and_has_tests_that_name_its_rule(table: Table, one: Mutation) -> None:
    for path, text in table.mutated(one).items():
        if path.suffix == ".py":
            compile(text, path.name, "exec")
    if one.tests:
        content = (ROOT / one.tests).read_text()
        assert any(f'"{rule}"' in content for rule in one.rules.split())
    else:
        assert naming(one.rules)


def test_a_mutation_whose_text_is_gone_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("some text")
    table = Table("files", (), {"file": tmp_path / "file.py"}, ())
    with pytest.raises(ValueError, match="0 times, not once"):
        table.mutated(Mutation("gone", "", "file", "no such text", ""))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_mutations_have_names_of_their_own_and_are_many(table: Table) -> None:
    assert len({one.name for one in table.mutations}) == len(table.mutations) >= AT_LEAST
