"""What users import: every public name is there, and the documentation and the examples need nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import leasemill
from leasemill import errors
from tests.docs.pages import PAGES, ROOT, blocks

PUBLIC = ("leasemill", "leasemill.dashboard", "leasemill.testing")
EXTRAS = {
    *{"django", "sqlalchemy", "asyncpg", "psycopg", "psycopg2", "pydantic", "opentelemetry", "prometheus_client"},
    *{"sentry_sdk", "starlette", "uvicorn", "httpx", "rich", "jinja2"},
}
EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))


def imported(source: str) -> set[str]:
    """The modules of Leasemill that a program names in its imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
    return {name for name in found if name.partition(".")[0] == "leasemill"}


def private(modules: set[str]) -> list[str]:
    return sorted(
        it for it in modules if it not in PUBLIC and not it.startswith(("leasemill.testing.", "leasemill.contrib."))
    )


def session(text: str) -> str:
    """The statements of a session, without what they print."""
    return "\n".join(line[4:] for line in text.splitlines() if line.startswith((">>> ", "... ")))


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in leasemill.__all__ if not hasattr(leasemill, name)] == []


def test_every_error_is_a_public_name() -> None:
    raised = {name for name, it in vars(errors).items() if isinstance(it, type) and issubclass(it, Exception)}
    assert raised - set(leasemill.__all__) == set()


def test_a_name_is_imported_when_it_is_first_used() -> None:
    program = "import leasemill, sys; print(*sorted(it for it in sys.modules if it.startswith('leasemill.')))"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["leasemill.errors"]


def test_an_app_and_its_worker_need_nothing_that_is_an_extra() -> None:
    """Not even where it is installed, as it is here: an import costs a start its time, and a program its choice."""
    program = "import leasemill, sys; [getattr(leasemill, it) for it in leasemill.__all__]; print(*sys.modules)"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {it.partition(".")[0] for it in completed.stdout.split()}
    assert {"leasemill", "asyncio"} <= loaded, "every name was used"
    assert loaded & EXTRAS == set()
    assert {it for it in EXTRAS if find_spec(it) is None} == set(), "what is not installed is not tested"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_import_public_names_alone(path: Path) -> None:
    assert private(imported(path.read_text())) == []


def test_pages_import_public_names_alone() -> None:
    sources = [
        (block.where, session(block.text) if block.language == "pycon" else block.text)
        for page in PAGES
        for block in blocks(page)
        if block.language in {"python", "pycon"}
    ]
    assert len(sources) > 30
    assert {where: found for where, source in sources if (found := private(imported(source)))} == {}
