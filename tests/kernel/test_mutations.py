"""The mutations can still be made; whether tests catch them is told by `make mutants`."""

from __future__ import annotations

import pytest

from tests.kernel.mutations import MUTATIONS, Mutation, mutated


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_a_mutation_finds_its_text_and_leaves_source_that_compiles(one: Mutation) -> None:
    for name, text in mutated(one).items():
        compile(text, name, "exec")


def test_a_mutation_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        mutated(Mutation("gone", "", (("fence.py", "no such text", ""),)))


def test_mutations_have_names_of_their_own() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)
