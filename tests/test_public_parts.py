"""Only public parts of other libraries are used: what a library does not document may change with any release of it.

A name that begins with an underscore is private, and so are the modules that are listed here. Where one is used all the
same, the module that does so is named with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
LEASEMILL: Final = sorted((ROOT / "src/leasemill").rglob("*.py"))

UNDOCUMENTED: Final = (
    "psycopg.generators",
    "psycopg.waiting",
    "psycopg.pq.misc",
    "uvicorn.protocols",
    "uvicorn.server",
)
"""Modules that their libraries do not document, with everything in them."""
UNDOCUMENTED_NAMES: Final = ("psycopg.adapt.Transformer",)
DOCUMENTED: Final = ("os._exit", "sys._current_frames", "sys._getframe", "sys._xoptions")
"""Private by their names only: Python's documentation describes them."""
ALLOWED: Final = {
    "server/protocol.py": "the guards of a connection, on uvicorn's parser; to be replaced by a protocol of our own",
    "server/exchange.py": "belongs to server/protocol.py",
}


def private_parts(source: str) -> Iterator[str]:
    """The private parts of other libraries that a module imports or reads."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                for one in names:
                    modules[one.asname or one.name.partition(".")[0]] = one.name
                    yield from _imported(one.name)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] != "leasemill":
                for one in names:
                    modules[one.asname or one.name] = f"{module}.{one.name}"
                    yield from _imported(f"{module}.{one.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            read = f"{modules[node.value.id]}.{node.attr}"
            if node.attr.startswith("_") and not node.attr.startswith("__") and read not in DOCUMENTED:
                yield read


def _imported(name: str) -> Iterator[str]:
    is_listed = name in UNDOCUMENTED_NAMES or any(f"{name}.".startswith(f"{one}.") for one in UNDOCUMENTED)
    parts = [part for part in name.split(".") if part.startswith("_") and not part.startswith("__")]
    if is_listed or parts:
        yield name


def test_no_module_uses_private_parts_of_another_library() -> None:
    found = {str(path.relative_to(ROOT / "src/leasemill")): [*private_parts(path.read_text())] for path in LEASEMILL}
    assert {module: parts for module, parts in found.items() if parts and module not in ALLOWED} == {}


def test_every_exception_is_still_needed() -> None:
    assert {
        module for module in ALLOWED if not [*private_parts((ROOT / "src/leasemill" / module).read_text())]
    } == set()


@pytest.mark.parametrize(
    ("source", "private"),
    [
        ("from psycopg.generators import execute", ["psycopg.generators.execute"]),
        ("from psycopg.adapt import Transformer", ["psycopg.adapt.Transformer"]),
        ("import uvicorn.protocols.http", ["uvicorn.protocols.http"]),
        ("from click._compat import strip_ansi", ["click._compat.strip_ansi"]),
        ("import subprocess\nsubprocess._cleanup()", ["subprocess._cleanup"]),
        ("from psycopg import sql as s\ns._x", ["psycopg.sql._x"]),
        ("import os\nos._exit(1)\nimport uvicorn\nuvicorn.run(app)\nself._own", []),
        ("from __future__ import annotations\nfrom leasemill.api import _own", []),
    ],
)
def test_private_parts_are_found(source: str, private: list[str]) -> None:
    assert [*private_parts(source)] == private
