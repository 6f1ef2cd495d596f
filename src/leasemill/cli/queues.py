"""`leasemill queues`: look at queues and set how they are worked on."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from leasemill.cli.opening import by_option, opened, reason_option, url_option
from leasemill.cli.output import json_option, print_json, print_table
from leasemill.errors import Invalid
from leasemill.kernel.commands import QueueView
from leasemill.kernel.model import SECOND, JobState, OnFailure, Policy
from leasemill.policy import check_backoff, microseconds
from leasemill.store.base import FullStore

PAGE = 1_000


@click.group()
def queues() -> None:
    """List, pause, resume and set queues."""


def all_queues(store: FullStore) -> list[QueueView]:
    found: list[QueueView] = []
    while page := store.queues(limit=PAGE, after=found[-1].name if found else ""):
        found += page
        if len(page) < PAGE:
            break
    return found


@queues.command("list")
@url_option
@json_option
def list_queues(url: str, as_json: bool) -> None:
    """List queues with their jobs by state, and their policy."""
    with opened(url) as store:
        found = all_queues(store)
    if as_json:
        print_json([msgspec.structs.asdict(queue) | {"policy": _policy(queue.policy)} for queue in found])
        return
    print_table(
        ("queue", *(state.value for state in JobState), "paused", "policy"),
        [
            (
                queue.name,
                *(f"{queue.counts[state]:,}" for state in JobState),
                "paused" if queue.is_paused else "-",
                " ".join(f"{name}={value}" for name, value in _policy(queue.policy).items()) or "-",
            )
            for queue in found
        ],
    )


@queues.command()
@click.argument("queue")
@reason_option
@by_option
@url_option
def pause(url: str, queue: str, reason: str, by: str) -> None:
    """Give out no more jobs of QUEUE; what runs goes on."""
    with opened(url) as store:
        store.pause(queue, by=by, reason=reason)
    click.echo(f"{queue} is paused")


@queues.command()
@click.argument("queue")
@reason_option
@by_option
@url_option
def resume(url: str, queue: str, reason: str, by: str) -> None:
    """Give out jobs of QUEUE again."""
    with opened(url) as store:
        store.resume(queue, by=by, reason=reason)
    click.echo(f"{queue} gives out jobs")


@queues.command("set")
@click.argument("queue")
@click.option("--lease", type=float, metavar="SECONDS", help="How long a claim holds without a heartbeat.")
@click.option("--timeout", type=float, metavar="SECONDS", help="How long a handler may run.")
@click.option("--max-retries", type=int, help="How often a failed job is tried again.")
@click.option("--max-expirations", type=int, help="After how many expirations a job is quarantined.")
@click.option("--backoff-base", type=float, metavar="SECONDS", help="The first retry's longest wait.")
@click.option("--backoff-cap", type=float, metavar="SECONDS", help="Any retry's longest wait.")
@click.option("--on-failure", type=click.Choice([choice.value for choice in OnFailure]), help="What its lanes do.")
@click.option("--clear", is_flag=True, help="Forget what was set before.")
@reason_option
@by_option
@url_option
@json_option
def set_queue(
    url: str,
    queue: str,
    lease: float | None,
    timeout: float | None,
    max_retries: int | None,
    max_expirations: int | None,
    backoff_base: float | None,
    backoff_cap: float | None,
    on_failure: str | None,
    clear: bool,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Set QUEUE's policy for the claims that follow; what is not named stays as it was.

    It goes before what a kind's declaration says, and behind what a job says itself.
    """
    asked = Policy(
        max_retries=max_retries,
        lease_ttl_us=_us("--lease", lease),
        timeout_us=_us("--timeout", timeout),
        max_expirations=max_expirations,
        backoff_base_us=_us("--backoff-base", backoff_base),
        backoff_cap_us=_us("--backoff-cap", backoff_cap),
        on_failure=None if on_failure is None else OnFailure(on_failure),
    )
    if asked == Policy() and not clear:
        raise Invalid("nothing to set: name at least one option, or --clear")
    with opened(url) as store:
        before = next((found.policy for found in all_queues(store) if found.name == queue), None)
        policy = asked if clear or before is None else _over(asked, before)
        check_backoff(f"queue {queue!r}", policy)
        store.set_policy(queue, policy, by=by, reason=reason)
    if as_json:
        print_json({"queue": queue, "policy": _policy(policy)})
    else:
        told = " ".join(f"{name}={value}" for name, value in _policy(policy).items())
        click.echo(f"{queue}: {told or 'no policy of its own'}")


def _us(what: str, seconds: float | None) -> int | None:
    return None if seconds is None else microseconds(what, seconds)


def _over(policy: Policy, before: Policy) -> Policy:
    fields: dict[str, Any] = msgspec.structs.asdict(before)
    fields |= {name: value for name, value in msgspec.structs.asdict(policy).items() if value is not None}
    return Policy(**fields)


def _policy(policy: Policy | None) -> dict[str, Any]:
    """What is set, durations in seconds."""
    if policy is None:
        return {}
    return {
        (name.removesuffix("_us") + "_s" if name.endswith("_us") else name): (
            value / SECOND if name.endswith("_us") else value
        )
        for name, value in msgspec.structs.asdict(policy).items()
        if value is not None
    }
