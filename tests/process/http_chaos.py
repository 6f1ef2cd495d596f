"""`make chaos-http`: the server is killed with -9 again and again while four workers and a producer use it, and then
restarted in good order.

`python -m tests.process.http_chaos --kills 100 --restarts 20`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from tests.fire.chaos import settled_seed
from tests.process.http_lab import HttpLab, HttpOutcome, RestartLab


@click.command()
@click.option("--kills", default=100, show_default=True)
@click.option("--restarts", default=20, show_default=True)
@click.option("--workers", default=4, show_default=True)
@click.option("--seed", type=int, default=None, help="Draws the same moments again; what they hit differs.")
def main(kills: int, restarts: int, workers: int, seed: int | None) -> None:
    seed = settled_seed(seed)
    wrong = 0
    click.echo(f"{kills} kills of the server under {workers} workers, seed {seed}")
    with tempfile.TemporaryDirectory(prefix="leasemill-http-") as folder:
        wrong += _show(HttpLab(Path(folder), kills, workers, seed).run())
    click.echo(f"{restarts} restarts of the server under {workers} workers")
    with tempfile.TemporaryDirectory(prefix="leasemill-http-") as folder:
        lab = RestartLab(Path(folder), restarts, workers, seed)
        wrong += _show(lab.run())
    if lab.back_s:
        click.echo(f"every worker was at work again {max(lab.back_s):.1f} s after the server was, at the latest")
    click.echo("0 lost, 0 doubled" if not wrong else f"{wrong} wrong")
    sys.exit(bool(wrong))


def _show(outcome: HttpOutcome) -> int:
    click.echo(f"{outcome.jobs:,} jobs, {outcome.unavailable} enqueues repeated, {outcome.took_s:.0f} s")
    for sentence in outcome.wrong[:20]:
        click.echo(f"  wrong: {sentence}")
    return len(outcome.wrong)


if __name__ == "__main__":
    main()
