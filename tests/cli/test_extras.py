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
        ("starlette", ("demo", "--store", "http"), "leasemill[http,server]"),
        ("httpx", ("demo", "--store", "http"), "leasemill[http,server]"),
        ("psycopg", ("demo", "--store", "postgresql"), "leasemill[postgres,testing]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package: str, arguments: tuple[str, ...], extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT.format(package=package), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")
    assert f"pip install '{extra}'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("package", "module", "install"),
    [
        ("django", "leasemill.contrib.django", "pip install 'leasemill[django]'"),
        ("opentelemetry", "leasemill.contrib.otel", "pip install 'leasemill[otel]'"),
        ("prometheus_client", "leasemill.contrib.prometheus", "pip install 'leasemill[prometheus]'"),
        ("sentry_sdk", "leasemill.contrib.sentry", "pip install sentry-sdk"),
        ("starlette", "leasemill.dashboard", "pip install 'leasemill[server]'"),
        ("jinja2", "leasemill.dashboard", "pip install 'leasemill[server]'"),
    ],
)
def test_a_module_without_its_package_says_what_to_install(package: str, module: str, install: str) -> None:
    program = WITHOUT.format(package=package).replace("main()", f"import {module}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("ImportError: ", "ModuleNotFoundError: "))
    assert last.endswith(install)
