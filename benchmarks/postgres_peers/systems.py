"""Who is measured, how its program is started, when it is done, and what it does for a job."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, LiteralString

HERE: Final = Path(__file__).parent
NODE_FOLDER: Final = Path("build/bench-node").absolute()


@dataclass(frozen=True)
class System:
    name: str
    module: str
    is_finished: LiteralString
    """Asked when all handlers were called: true as soon as the database has the end of every one of `count` jobs."""
    keeps: str
    fences: str
    calls: str
    settings: str
    share: float = 1
    """Of the jobs: slow systems get fewer, or the benchmark would take hours."""

    @property
    def is_node(self) -> bool:
        return self.module.endswith(".mjs")

    def command(self, part: str, url: str, count: int) -> list[str]:
        program = ["node", str(NODE_FOLDER / self.module)] if self.is_node else [sys.executable, "-m", self.module]
        return [*program, part, url, str(count)]

    def jobs(self, count: int) -> int:
        return max(1, round(count * self.share))


LEASEMILL: Final = System(
    "leasemill",
    "benchmarks.postgres_peers.leasemill",
    "select not exists (select from leasemill.leases)",
    keeps="job, execution",
    fences="token and expiry",
    calls="each job",
    settings="as it comes",
)
PEERS: Final = (
    System(
        "pgqueuer",
        "benchmarks.postgres_peers.pgqueuer",
        "select not exists (select from pgqueuer)",
        keeps="log rows, job deleted",
        fences="no",
        calls="each job",
        settings="asyncpg, uvloop, batch_size 1,000",
    ),
    System(
        "awa-pg",
        "benchmarks.postgres_peers.awa",
        # Its view of all jobs takes seconds to read; every job that succeeded is counted in one of these batches.
        "select coalesce(sum(completed_count), 0) >= %(count)s from awa.receipt_completion_batches",
        keeps="job",
        fences="run lease",
        calls="each job",
        settings="COPY into queue storage, max_workers 1,024",
    ),
    System(
        "chancy",
        "benchmarks.postgres_peers.chancy",
        "select not exists (select from chancy_jobs where state <> 'succeeded')",
        keeps="job",
        fences="claim",
        calls="each job",
        settings="async executor, 1,000 slots, eager polling, updates every 50 ms",
        share=0.1,
    ),
    System(
        "procrastinate",
        "benchmarks.postgres_peers.procrastinate",
        "select not exists (select from procrastinate_jobs where status in ('todo', 'doing'))",
        keeps="job, events",
        fences="no",
        calls="each job",
        settings="concurrency 10",
        share=0.03,
    ),
    System(
        "graphile-worker",
        "graphile_worker.mjs",
        "select not exists (select from graphile_worker._private_jobs)",
        keeps="nothing, job deleted",
        fences="no",
        calls="each job",
        settings="local queue 2,000, completions batched, 24 at once",
    ),
    System(
        "pg-boss",
        "pg_boss.mjs",
        "select not exists (select from pgboss.job where state < 'completed')",
        keeps="job",
        fences="attempt",
        calls="a batch of 2,000",
        settings="batchSize 2,000, two at once, burst while full, listen and notify",
    ),
)


def has_node() -> bool:
    return shutil.which("node") is not None and shutil.which("npm") is not None


def install_node_peers() -> None:
    """Into build/bench-node, from the exact versions of package.json; node finds packages beside a program only."""
    NODE_FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = (HERE / "package.json").read_text()
    installed = NODE_FOLDER / "installed.json"
    for program in HERE.glob("*.mjs"):
        shutil.copy(program, NODE_FOLDER)
    if installed.exists() and installed.read_text() == wanted:
        return
    (NODE_FOLDER / "package.json").write_text(wanted)
    subprocess.run(
        ["npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        cwd=NODE_FOLDER,
        check=True,
    )
    installed.write_text(wanted)


def available(names: Sequence[str] | None) -> list[System]:
    """The peers of these names, or all, as far as they can run here."""
    known = {system.name: system for system in PEERS}
    unknown = set(names or ()) - known.keys()
    if unknown:
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such peer; there are {', '.join(known)}")
    chosen = [system for name, system in known.items() if names is None or name in names]
    if any(system.is_node for system in chosen):
        if has_node():
            install_node_peers()
        else:
            print("there is no node here: graphile-worker and pg-boss are not measured")
            chosen = [system for system in chosen if not system.is_node]
    return chosen
