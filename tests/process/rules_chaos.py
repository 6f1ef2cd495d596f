"""`make chaos-rules`: worker processes are killed and stopped hundreds of times while every rule is at work.

`python -m tests.process.rules_chaos --store file --kills 500`. What happened is read from the store's own records:
no job lost or doubled, every callback once, no place leaked, everything ended.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import psycopg

from leasemill.store.postgres.admin.migrate import migrate
from leasemill.store.postgres.driver.url import parse_url
from leasemill.testing.postgres import PostgresServer
from tests.fire.chaos import settled_seed
from tests.process.rules_lab import RulesLab
from tests.process.rules_parts import Size

PARTS = ("groups", "limits", "backlog", "schedules")


@contextmanager
def store_url(store: str, folder: Path) -> Iterator[str]:
    if store == "file":
        yield f"file:{folder / 'jobs'}"
        return
    with PostgresServer() as server:
        conninfo, options = parse_url(server.url())
        with psycopg.connect(conninfo, autocommit=True) as connection:
            migrate(connection, options.schema)
        yield server.url()


@click.command()
@click.option("--store", type=click.Choice(["file", "postgresql"]), default="file", show_default=True)
@click.option("--kills", default=500, show_default=True)
@click.option("--groups", default=50, show_default=True)
@click.option("--members", default=40, show_default=True, help="Of each group.")
@click.option("--workers", default=8, show_default=True)
@click.option("--rule", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS, help="Default: all of them.")
@click.option("--seed", type=int, default=None, help="Draws the same kills again; their effect depends on the machine.")
def main(
    store: str, kills: int, groups: int, members: int, workers: int, parts: tuple[str, ...], seed: int | None
) -> None:
    seed = settled_seed(seed)
    click.echo(f"{store}: {kills} kills of {workers} workers, {', '.join(parts)}, seed {seed}")
    with ExitStack() as cleaning:
        folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="leasemill-rules-")))
        url = cleaning.enter_context(store_url(store, folder))
        outcome = RulesLab(url, folder, seed, parts, Size(kills, groups, members, workers), cleaning).run()
    expired = f"{outcome.stops} stopped for longer than their leases, {outcome.expired_leases} leases expired"
    click.echo(f"{outcome.jobs:,} jobs, {expired}, {outcome.took_s:.0f} s")
    for summary in outcome.summaries:
        click.echo(f"  {summary}")
    for sentence in outcome.wrong[:20]:
        click.echo(f"  WRONG: {sentence}")
    if outcome.wrong:
        raise SystemExit(f"{len(outcome.wrong)} faults; seed {seed}")
    click.echo("holds: 0 jobs lost, 0 doubled, everything ended")


if __name__ == "__main__":
    main()
