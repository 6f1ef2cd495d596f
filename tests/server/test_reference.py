"""The page about the commands is current."""

from __future__ import annotations

from leasemill.wire.routes import ROUTES
from tests.server.reference import PAGE, page


def test_the_page_is_what_the_types_say() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.server.reference"


def test_the_page_has_every_command() -> None:
    text = PAGE.read_text()
    assert [route.name for route in ROUTES if f"\n### {route.name}\n" not in text] == []
