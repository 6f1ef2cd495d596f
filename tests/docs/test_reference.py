"""The page about the public names has every one of them, as the code has it."""

from __future__ import annotations

import re

import leasemill
from tests.docs.reference import INTERNAL, PAGE, PARTS, errors, page


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.docs.reference"


def test_every_public_name_is_on_the_page_once() -> None:
    named = [name for names in PARTS.values() for name in names]
    assert sorted([*named, *errors()]) == sorted(leasemill.__all__)
    text = PAGE.read_text()
    assert re.findall(r"^### (\w+)$", text, re.MULTILINE) == named
    assert {name for name in errors() if f"`{name}` |" not in text} == set()


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    found = {name: getattr(leasemill, name) for name in leasemill.__all__}
    classes = {name: it for name, it in found.items() if isinstance(it, type)}
    assert {name for name, it in classes.items() if not it.__dict__.get("__doc__")} == set()


def test_what_is_left_out_of_the_page_exists() -> None:
    left_out = {(name, key) for name, keys in INTERNAL.items() for key in keys}
    assert {(name, key) for name, key in left_out if not hasattr(getattr(leasemill, name), key)} == set()
