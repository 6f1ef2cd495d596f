"""Commands that need a package which is not installed: they name the extra to install, and show no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = """
from importlib.machinery import PathFinder
from leasemill.cli import main

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)
main()
"""


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("psycopg", ("db", "migrate", "--url", "postgresql://127.0.0.1:1/shop"), "leasemill[postgres]"),
        ("psycopg", ("db", "status", "--url", "postgresql://127.0.0.1:1/shop"), "leasemill[postgres]"),
        ("psycopg", ("db", "check", "--url", "postgresql://127.0.0.1:1/shop"), "leasemill[postgres]"),
        ("psycopg", ("jobs", "list", "--url", "postgresql://127.0.0.1:1/shop"), "leasemill[postgres]"),
        ("httpx", ("jobs", "list", "--url", "http://127.0.0.1:1"), "leasemill[http]"),
        ("uvicorn", ("serve", "--url", "memory:"), "leasemill[server]"),
        ("starlette", ("serve", "--url", "memory:"), "leasemill[server]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package: str, arguments: tuple[str, ...], extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(package=package), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert f"pip install '{extra}'" in done.stderr
    assert "Traceback" not in done.stderr
