"""`leasemill actions`: what operators did, newest first."""

from __future__ import annotations

import click

from leasemill.cli.opening import limit_option, on_store
from leasemill.cli.output import emit_table, instant
from leasemill.kernel.model import ACTIONS_KEPT, Verb
from leasemill.store.base import Store

ACTS = (
    *(Verb.CANCEL, Verb.REDRIVE, Verb.PURGE, Verb.PAUSE, Verb.RESUME, Verb.SET_POLICY),
    *(Verb.SET_SCHEDULE, Verb.REMOVE_SCHEDULE, Verb.PAUSE_SCHEDULE, Verb.RESUME_SCHEDULE, Verb.FIRE, Verb.BACKFILL),
    Verb.SEAL_GROUP,
)


@click.command()
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    type=click.Choice([verb.value for verb in ACTS]),
    help="Only actions of this kind; may be repeated.",
)
@click.option("--target", help="Only actions on this job or queue, or on a schedule: cron/NAME.")
@click.option("--by", help="Only actions of this person.")
@limit_option()
@on_store
def actions(
    store: Store, verbs: tuple[str, ...], target: str | None, by: str | None, limit: int, as_json: bool
) -> None:
    """List what operators did, newest first: when, who, what, on which job or queue, and why.

    The latest 1,000 actions are kept.
    """
    found = [
        act
        for act in store.actions(limit=ACTIONS_KEPT)
        if (not verbs or act.verb in verbs) and target in (None, act.target) and by in (None, act.by)
    ]
    rows = [(instant(act.at), act.by, act.verb.value, act.target, act.reason) for act in found[:limit]]
    emit_table(
        as_json,
        (dict(zip(("at", "by", "verb", "target", "reason"), row, strict=True)) for row in rows),
        ("at", "by", "act", "target", "reason"),
        rows,
        f"{len(found) - limit:,} more: --limit {len(found)}" if len(found) > limit else "",
    )
