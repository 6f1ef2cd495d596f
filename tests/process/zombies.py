"""`make zombies`: workers are stopped past their leases and continued, on a store of your choice.

`python -m tests.process.zombies --url http://127.0.0.1:7411`.
"""

from __future__ import annotations

import sys
from collections import Counter

import click

from leasemill.operator.wording import counted
from leasemill.store.url import hidden_password
from tests.lab.zombie import Variant, play_all, staged


@click.command()
@click.option("--url", help="The store. Default: a temporary folder.")
@click.option("--runs", default=4, show_default=True, type=click.IntRange(1), help="Of each variant.")
@click.option("--parallel", default=4, show_default=True, type=click.IntRange(1), help="Runs at a time.")
def main(url: str | None, runs: int, parallel: int) -> None:
    """Exits with 1 if an effect is missing or doubled, or is on record for the wrong worker."""
    click.echo(f"{counted(runs * len(Variant), 'run')} on {'a folder' if url is None else hidden_password(url)}")
    with staged(url) as stage:
        done = play_all(stage, Variant, runs, parallel)
    for variant in Variant:
        of_it = [run for run in done if run.variant is variant]
        effects = Counter(run.effects for run in of_it)
        verbs = Counter(verb for run in of_it for verb in run.refused)
        shown = ", ".join(f"{count} {verb}" for verb, count in sorted(verbs.items()))
        times = ", ".join(f"{count} runs with {number}" for number, count in sorted(effects.items()))
        click.echo(f"  {variant:<9} effects: {times}; refused: {shown or 'nothing'}")
    wrong = [f"{run.job}: {sentence}" for run in done for sentence in run.wrong]
    for sentence in wrong:
        click.echo(f"  wrong: {sentence}")
    click.echo("every effect is there once" if not wrong else f"{len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
