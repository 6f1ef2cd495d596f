"""`make chaos STORE=postgresql`: everything that is done to PostgreSQL and its workers, at full length."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from tests.fire import faults
from tests.fire.cuts import connections_cut
from tests.fire.faults import Ground
from tests.fire.load import Verdict
from tests.fire.network import packets_dropped

Fault = Callable[[Ground], Verdict]

FAULTS: dict[str, Fault] = {
    "worker killed with -9": lambda ground: faults.workers_killed(ground, 30),
    "zombies, 50 of each variant": lambda ground: faults.zombies(ground, 50),
    "server stopped fast, started again": lambda ground: faults.server_stopped(ground, "fast", 20),
    "server stopped immediately, started again": lambda ground: faults.server_stopped(ground, "immediate", 20),
    "server killed with -9, started again": lambda ground: faults.server_killed(ground, 5),
    "server down for 30 s": lambda ground: faults.server_down(ground, 30),
    "every backend terminated": lambda ground: faults.backends_terminated(ground, 20),
    "all connections of the server taken": lambda ground: faults.connections_exhausted(ground, 3, 5),
    "one connection in the pool": lambda ground: faults.pool_exhausted(ground, 10),
    "a session locks rows of the user for 60 s": lambda ground: faults.locks_held(ground, 60),
    "a session locks the store's tables for 15 s": lambda ground: faults.tables_locked(ground, 15),
    "a session holds a snapshot for 60 s": lambda ground: faults.snapshot_held(ground, 60),
    "connections cut before, during, after a request": lambda ground: connections_cut(ground, 300),
    "the outbox example, its worker killed with -9": lambda ground: faults.example_killed(ground, 100),
    "packets dropped for 40 s, and for 90 s": lambda ground: packets_dropped(ground.folder, ground.seed, [40, 90]),
    "clocks of the workers 2 h late and early": lambda ground: faults.clocks_skewed(ground, 10),
}


def settled_seed(given: int | None) -> int:
    """The seed that is asked for, else another each time."""
    if given is not None:
        return given
    return int(os.environ.get("SEED") or int.from_bytes(os.urandom(3)) + 1)


def chaos(seed: int, only: str) -> list[str]:
    """Prints the table; what went wrong."""
    wrong: list[str] = []
    click.echo(_line("fault", "runs", "jobs", "lost", "doubled", "refused", "recovery", "s", "verdict"))
    with tempfile.TemporaryDirectory(prefix="leasemill-chaos-") as folder:
        ground = Ground(Path(folder), seed)
        with ground.server:
            for name, fault in FAULTS.items():
                if only in name:
                    wrong += _row(name, fault, ground)
    return wrong


def _row(name: str, fault: Fault, ground: Ground) -> list[str]:
    begun = time.monotonic()
    try:
        verdict = fault(ground)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a failure and must be reported)
        verdict = Verdict(wrong=[f"{type(error).__name__}: {error}"])
    slowest = "-" if verdict.slowest_s is None else f"{verdict.slowest_s:.2f} s"
    runs, jobs = f"{verdict.runs:,}", f"{verdict.jobs:,}"
    lost, doubled, refused = map(str, (verdict.lost, verdict.doubled, verdict.refused))
    took = f"{time.monotonic() - begun:.0f}"
    end = "FAILED" if verdict.wrong else "NOT RUN" if verdict.not_run else "ok"
    click.echo(_line(name, runs, jobs, lost, doubled, refused, slowest, took, end))
    if verdict.not_run:
        click.echo(f"    {verdict.not_run}")
    for sentence in verdict.wrong[:5]:
        click.echo(f"    {sentence}")
    return [f"{name}: {sentence}" for sentence in verdict.wrong]


def _line(
    fault: str, runs: str, jobs: str, lost: str, doubled: str, refused: str, recovery: str, s: str, end: str
) -> str:
    return f"{fault:<48} {runs:>5} {jobs:>7} {lost:>5} {doubled:>8} {refused:>8} {recovery:>9} {s:>5}  {end}"
