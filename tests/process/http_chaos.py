"""`make chaos-http`: the server is killed with -9 again and again while four workers and a producer use it.

`python -m tests.process.http_chaos --kills 100`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from tests.fire.chaos import settled_seed
from tests.process.http_lab import HttpLab


@click.command()
@click.option("--kills", default=100, show_default=True)
@click.option("--workers", default=4, show_default=True)
@click.option("--seed", type=int, default=None, help="Draws the same moments again; what they hit differs.")
def main(kills: int, workers: int, seed: int | None) -> None:
    seed = settled_seed(seed)
    click.echo(f"{kills} kills of the server under {workers} workers, seed {seed}")
    with tempfile.TemporaryDirectory(prefix="leasemill-http-") as folder:
        outcome = HttpLab(Path(folder), kills, workers, seed).run()
    click.echo(f"{outcome.jobs:,} jobs, {outcome.unavailable} enqueues repeated, {outcome.took_s:.0f} s")
    for sentence in outcome.wrong[:20]:
        click.echo(f"  wrong: {sentence}")
    click.echo("0 lost, 0 doubled" if not outcome.wrong else f"{len(outcome.wrong)} wrong")
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
