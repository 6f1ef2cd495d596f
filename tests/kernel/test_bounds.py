"""Which characters ids and lanes may have: the same in every version of Python."""

from __future__ import annotations

import unicodedata

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.bounds import UNPRINTABLE, check_text
from leasemill.testing.rules import rule

REFUSED = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"}


@rule("I4")
def test_what_is_refused_follows_from_the_categories_of_unicode() -> None:
    """Of characters that this Python knows; what it does not know yet is accepted, but for what never will be one."""
    for number in range(0x110000):
        category = unicodedata.category(chr(number))
        if category != "Cn":
            is_refused = UNPRINTABLE.search(chr(number)) is not None
            assert is_refused == (category in REFUSED and chr(number) != " "), f"{number:04x} is {category}"


@rule("I4")
@pytest.mark.parametrize("text", ["\U0001fae8", "\U0001faea", "\U000323b0", "ä b", "\ufffd", "a" * 200])
def test_a_character_of_a_later_unicode_is_accepted(text: str) -> None:
    check_text("id", text)


@rule("I4")
@pytest.mark.parametrize("text", ["", "a" * 201, "a\n", "\x7f", "\u00a0", "\u200b", "\ud800", "\ue000", "\U000e0041"])
def test_a_text_that_cannot_be_seen_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="must be 1 to 200 printable characters"):
        check_text("id", text)
