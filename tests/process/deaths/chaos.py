"""`make chaos-deaths`: workers are killed by the hundred under the default lease, and others stand still meanwhile.

`python -m tests.process.deaths.chaos --store file --form bare --kills 200`. Each job that a killed worker held must run
again at once, and take effect once; nobody who lives may be declared dead.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from tests.fire.chaos import settled_seed
from tests.lab.processes import TookTooLong
from tests.process.deaths.audit import spread
from tests.process.deaths.lab import BAR_S, FORMS, DeathsLab, Outcome, Size
from tests.process.rules_chaos import store_url

STORES = ("file", "postgresql")


@click.command()
@click.option("--store", "stores", multiple=True, type=click.Choice(STORES), default=STORES, help="Default: both.")
@click.option("--form", "forms", multiple=True, type=click.Choice(FORMS), default=FORMS, help="Default: both.")
@click.option("--kills", default=200, show_default=True)
@click.option("--stops", default=50, show_default=True, help="Of a few seconds.")
@click.option("--long-stops", default=2, show_default=True, help="Of more than the lease.")
@click.option("--ends", default=3, show_default=True, help="Times that everything is killed, a supervisor too.")
@click.option("--seed", type=int, default=None, help="Draws the same kills again; their effect depends on the machine.")
def main(
    stores: tuple[str, ...],
    forms: tuple[str, ...],
    kills: int,
    stops: int,
    long_stops: int,
    ends: int,
    seed: int | None,
) -> None:
    seed = settled_seed(seed)
    size = Size(kills, stops, long_stops=long_stops, ends=ends)
    click.echo(f"{kills} kills of 4 workers, {stops} stops and {long_stops} of more than the lease, seed {seed}")
    missed: list[str] = []
    for store in stores:
        for form in forms:
            with ExitStack() as cleaning:
                folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="leasemill-deaths-")))
                url = cleaning.enter_context(store_url(store, folder))
                try:
                    outcome = DeathsLab(url, folder, form, seed, cleaning).run(size)
                except TookTooLong as error:
                    missed.append(f"{store}, {form}: {error}")
                    continue
            missed += report(f"{store}, {form}", outcome)
    if missed:
        raise SystemExit("\n".join([*(f"MISSED: {one}" for one in missed), f"repeat with --seed {seed}"]))
    click.echo(
        f"holds: 0 lost, 0 doubled, nobody declared dead who lived; the next run starts within {BAR_S:g} s (p99)"
    )


def report(name: str, outcome: Outcome) -> list[str]:
    """Prints it; what is missed."""
    click.echo(f"{name}: {outcome.jobs:,} jobs, {outcome.took_s:.0f} s")
    for sentence in outcome.summary():
        click.echo(f"  {sentence}")
    for sentence in outcome.slowest:
        click.echo(f"  slow: {sentence}")
    for sentence in outcome.wrong[:20]:
        click.echo(f"  WRONG: {sentence}")
    missed = [f"{name}: {len(outcome.wrong)} faults, the first: {outcome.wrong[0]}"] if outcome.wrong else []
    started = spread(outcome.started_s())
    if not started.number:
        missed.append(f"{name}: no kill came while a worker worked, nothing was shown")
    elif started.p99 > BAR_S:
        missed.append(
            f"{name}: the next run started {started.p99:.1f} s after the kill (p99), and {BAR_S:g} s are allowed"
        )
    return missed


if __name__ == "__main__":
    main()
