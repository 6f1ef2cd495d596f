"""Faults put into the source on purpose, to see that the tests notice: `make mutants`.

Each mutation takes one guard or one rule out of a copy of the source. A test that names the rule must fail on it: of
the conformance suite, or of the file the mutation names. Only those tests are run. Text that is not found is an error:
a mutation that no longer applies must be rewritten, not skipped.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasemill.testing.conformance import ConformanceSuite

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src"
TIMEOUT_S: Final = 300

Change = tuple[str, str, str]


@dataclass(frozen=True)
class Mutation:
    """In a file of the table, `old` becomes `new`; `tests`: the file that must notice, default the conformance suite's;
    `also`: other changes that belong to it, as (file, old, new)."""

    name: str
    rules: str
    file: str
    old: str
    new: str
    tests: str = ""
    also: tuple[Change, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        return ((self.file, self.old, self.new), *self.also)


@dataclass(frozen=True)
class Table:
    """Mutations of one kind: what they change, where their files are, and the conformance suites that must notice.

    Each of the suites must: on PostgreSQL one is driven by threads and one by an event loop. `beside`: tests of which
    it is only reported whether they notice.
    """

    title: str
    mutations: tuple[Mutation, ...]
    files: Mapping[str, Path]
    conformance: tuple[str, ...]
    beside: tuple[str, ...] = ()

    def mutated(self, wanted: Mutation) -> dict[Path, str]:
        """The changed files; every text must be found exactly once."""
        files: dict[Path, str] = {}
        for name, old, new in wanted.changes:
            path = self.files[name]
            text = files.get(path) or path.read_text()
            if text.count(old) != 1:
                raise ValueError(f"{wanted.name}: this is in {name} {text.count(old)} times, not once:\n{old}")
            files[path] = text.replace(old, new)
        return files


@dataclass(frozen=True)
class Verdict:
    mutation: Mutation
    caught_by: str | None
    caught_beside: str | None
    seconds: float


def judge(table: Table, wanted: Mutation, environment: Mapping[str, str]) -> Verdict:
    """Run the tests on a mutated copy of the source; which one fails first?"""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="leasemill-mutant-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for path, text in table.mutated(wanted).items():
            (copy / path.relative_to(SOURCE)).write_text(text)
        environment = {**environment, "PYTHONPATH": str(copy)}
        if wanted.tests:
            failures = [first_failure(environment, wanted.tests)]
        else:
            tests = "-k", " or ".join(naming(wanted.rules))
            failures = [first_failure(environment, suite, *tests) for suite in table.conformance]
        caught_by = ", ".join(dict.fromkeys(filter(None, failures))) if all(failures) else None
        caught_beside = first_failure(environment, *table.beside) if table.beside else None
    return Verdict(wanted, caught_by, caught_beside, time.monotonic() - began)


def naming(rules: str) -> list[str]:
    """The tests of the conformance suite that name one of these rules."""
    wanted = set(rules.split())
    tests = {name: getattr(ConformanceSuite, name) for name in dir(ConformanceSuite) if name.startswith("test_")}
    return [name for name, test in tests.items() if not wanted.isdisjoint(getattr(test, "__rules__", ()))]


def first_failure(environment: Mapping[str, str], *tests: str) -> str | None:
    """The first of these tests that fails, None if all pass."""
    options = ["-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--timeout=60", "-n", "0"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    try:
        completed = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return "(timeout)"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", completed.stdout, re.MULTILINE)
    if completed.returncode != 0 and failed is None:
        raise RuntimeError(f"pytest failed without naming a test:\n{completed.stdout}\n{completed.stderr}")
    return None if failed is None else failed[1].rpartition("::")[2]


def main(table: Table, environment: Callable[[], Mapping[str, str]], arguments: list[str]) -> int:
    """`environment`: of the tests of one mutation; several run at a time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutations whose name has one of these words")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the draw, to repeat it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    wanted = [one for one in table.mutations if not options.words or any(word in one.name for word in options.words)]
    if options.sample is not None and options.sample < len(wanted):
        _print(f"{options.sample} of {len(wanted)} mutations of {table.title}, drawn with --seed {options.seed}")
        wanted = random.Random(options.seed).sample(wanted, options.sample)
    _print(f"| mutation of {table.title} | rules | caught by | {'its own tests | ' if table.beside else ''}seconds |")
    _print(f"|---|---|---|---|{'---|' if table.beside else ''}")
    survivors: list[str] = []
    with ThreadPoolExecutor(options.processes) as pool:
        for one in pool.map(lambda it: judge(table, it, environment()), wanted):
            beside = f"{one.caught_beside or '–'} | " if table.beside else ""
            mutation = one.mutation
            _print(f"| {mutation.name} | {mutation.rules} | {one.caught_by or '–'} | {beside}{one.seconds:.1f} |")
            if one.caught_by is None:
                survivors.append(mutation.name)
    _print(f"{len(wanted)} mutations of {table.title}, {len(survivors)} survived")
    for name in survivors:
        _print(f"  survived: {name}")
    return 1 if survivors else 0


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
