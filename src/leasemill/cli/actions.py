"""`leasemill actions`: what operators did, newest first."""

from __future__ import annotations

import click

from leasemill.cli.opening import opened, url_option
from leasemill.cli.output import instant, json_option, print_json, print_table
from leasemill.kernel.model import ACTIONS_KEPT, Verb

ACTS = (Verb.CANCEL, Verb.REDRIVE, Verb.PURGE, Verb.PAUSE, Verb.RESUME, Verb.SET_POLICY)


@click.command()
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    type=click.Choice([verb.value for verb in ACTS]),
    help="Only actions of this kind; may be repeated.",
)
@click.option("--target", help="Only actions on this job or queue.")
@click.option("--by", help="Only actions of this person.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="List at most this many.")
@url_option
@json_option
def actions(url: str, verbs: tuple[str, ...], target: str | None, by: str | None, limit: int, as_json: bool) -> None:
    """List what operators did, newest first: when, who, what, on which job or queue, and why.

    The latest 1,000 actions are kept.
    """
    with opened(url) as store:
        kept = store.actions(limit=ACTIONS_KEPT)
    found = [
        act
        for act in kept
        if (not verbs or act.verb in verbs) and target in (None, act.target) and by in (None, act.by)
    ]
    if as_json:
        print_json(
            [
                {"at": instant(act.at), "by": act.by, "verb": act.verb, "target": act.target, "reason": act.reason}
                for act in found[:limit]
            ]
        )
        return
    print_table(
        ("at", "by", "act", "target", "reason"),
        [(instant(act.at), act.by, act.verb.value, act.target, act.reason) for act in found[:limit]],
    )
    if len(found) > limit:
        click.echo(f"{len(found) - limit:,} more: --limit {len(found)}", err=True)
