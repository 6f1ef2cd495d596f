"""`make chaos-shops`: the same shop with psycopg, SQLAlchemy, SQLAlchemy on asyncpg and Django; its workers are killed.

`python -m tests.process.shops.chaos --shop django --kills 200`. Each order must be charged and shipped once, to the
cent; a zombie must notice that its lease is lost: its commit is refused, or it is stopped before it.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from leasemill.testing.postgres import PostgresServer
from tests.fire.chaos import settled_seed
from tests.process.shops.lab import SHOPS, Outcome, ShopLab


@click.command()
@click.option("--shop", "shops", multiple=True, type=click.Choice(SHOPS), default=SHOPS, help="Default: all of them.")
@click.option("--kills", default=200, show_default=True)
@click.option("--zombies", default=10, show_default=True)
@click.option("--seed", type=int, default=None, help="Draws the same kills again; their effect depends on the machine.")
def main(shops: tuple[str, ...], kills: int, zombies: int, seed: int | None) -> None:
    seed = settled_seed(seed)
    click.echo(f"{kills} kills and {zombies} zombies in each shop, seed {seed}")
    faults = 0
    for shop in shops:
        with ExitStack() as cleaning:
            folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="leasemill-shop-")))
            server = cleaning.enter_context(PostgresServer())
            outcome = ShopLab(server, shop, folder, seed, cleaning).run(kills, zombies)
        faults += report(shop, outcome)
    if faults:
        raise SystemExit(f"{faults} faults; seed {seed}")
    click.echo("holds: each order charged and shipped once, to the cent; no zombie took effect")


def report(shop: str, outcome: Outcome) -> int:
    click.echo(
        f"{shop:<12} {outcome.orders:,} orders, {outcome.kills} kills, {outcome.expired_leases} leases expired, "
        f"{outcome.zombies} zombies, {outcome.refused_commits} commits refused, {outcome.took_s:.0f} s"
    )
    for sentence in outcome.wrong[:20]:
        click.echo(f"  WRONG: {sentence}")
    return len(outcome.wrong)


if __name__ == "__main__":
    main()
