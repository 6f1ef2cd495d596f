"""The mutations of SQL can still be made; whether tests catch them is told by `make mutants`."""

from __future__ import annotations

import pytest

from tests.store.postgres.mutations import CONFORMANCE, MUTATIONS, ROOT, Mutation, mutated, naming

AT_LEAST = 25


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_a_mutation_of_sql_finds_its_text_and_has_tests_that_name_its_rule(one: Mutation) -> None:
    assert mutated(one)
    if one.tests == CONFORMANCE:
        assert naming(one.rules)
    else:
        content = (ROOT / one.tests).read_text()
        assert any(f'"{rule}"' in content for rule in one.rules.split())


def test_a_mutation_of_sql_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        mutated(Mutation("gone", "", "ack", "no such text", ""))


def test_mutations_of_sql_have_names_of_their_own_and_are_many() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS) >= AT_LEAST
