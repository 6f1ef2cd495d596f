"""`leasemill queues`: list queues, pause and resume them, and set their policies."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from leasemill.api.policy import LEASES_S, SHORTEST_LEASE_US, check_backoff, microseconds
from leasemill.cli.output import emit, emit_table
from leasemill.cli.quantities import Seconds, metavar, seconds_or
from leasemill.cli.store_options import acting_on_store, on_store
from leasemill.errors import Invalid, NotFound
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, JobState, LimitTerms, OnFailure, Policy
from leasemill.operator.listing import all_queues, find_queue
from leasemill.operator.wording import did_you_mean, listed
from leasemill.store.base import Store

create_option = click.option("--create", is_flag=True, help="Allow a queue that the store does not know yet.")


@click.group()
def queues() -> None:
    """List, pause, resume and configure queues."""


@queues.command("list")
@on_store
def list_queues(store: Store, as_json: bool) -> None:
    """List queues with their jobs by state, and their policy."""
    found = list(all_queues(store))
    emit_table(
        as_json,
        (msgspec.structs.asdict(queue) | {"policy": _policy(queue.policy)} for queue in found),
        ("queue", *(state.value for state in JobState), "paused", "policy"),
        (
            (
                queue.name,
                *(f"{queue.counts[state]:,}" for state in JobState),
                "paused" if queue.is_paused else "-",
                _shown(queue.policy) or "-",
            )
            for queue in found
        ),
    )


@queues.command()
@click.argument("queue")
@create_option
@acting_on_store
def pause(store: Store, queue: str, create: bool, reason: str, by: str, as_json: bool) -> None:
    """Pause QUEUE: workers claim no more of its jobs. Running jobs continue."""
    _check_known(store, queue, create)
    store.pause(queue, by=by, reason=reason)
    emit(as_json, {"queue": queue, "is_paused": True}, f"queue {queue} paused")


@queues.command()
@click.argument("queue")
@create_option
@acting_on_store
def resume(store: Store, queue: str, create: bool, reason: str, by: str, as_json: bool) -> None:
    """Resume QUEUE: workers claim its jobs again."""
    _check_known(store, queue, create)
    store.resume(queue, by=by, reason=reason)
    emit(as_json, {"queue": queue, "is_paused": False}, f"queue {queue} resumed")


@queues.command("set")
@click.argument("queue")
@click.option(
    "--lease",
    type=seconds_or(LEASES_S),
    metavar=metavar(LEASES_S),
    help="How long a lease lasts without a heartbeat.",
)
@click.option("--timeout", type=Seconds(), metavar="SECONDS", help="How long a handler may run.")
@click.option("--max-retries", type=click.IntRange(0, 1_000), help="How many times a failed job is retried.")
@click.option(
    "--max-expirations", type=click.IntRange(1, 1_000), help="A job is quarantined after this many expirations."
)
@click.option("--backoff-base", type=Seconds(), metavar="SECONDS", help="The longest wait before the first retry.")
@click.option("--backoff-cap", type=Seconds(), metavar="SECONDS", help="The longest wait before any retry.")
@click.option(
    "--on-failure",
    type=click.Choice([choice.value for choice in OnFailure]),
    help="Whether a lane continues or blocks after a job has failed permanently.",
)
@click.option("--limit", type=click.IntRange(0), help="How many of its jobs may run at a time, across all workers.")
@click.option("--clear", is_flag=True, help="Remove everything that was set before, including the limit.")
@create_option
@acting_on_store
def set_queue(
    store: Store,
    queue: str,
    lease: float | None,
    timeout: float | None,
    max_retries: int | None,
    max_expirations: int | None,
    backoff_base: float | None,
    backoff_cap: float | None,
    on_failure: str | None,
    limit: int | None,
    clear: bool,
    create: bool,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Set the policy of QUEUE for claims from now on. Settings you leave out stay unchanged.

    A queue's policy overrides what the code declares for a kind; a job's own policy overrides both.
    """
    asked = Policy(
        max_retries=max_retries,
        lease_ttl_us=_us("--lease", lease, SHORTEST_LEASE_US),
        timeout_us=_us("--timeout", timeout, 1),
        max_expirations=max_expirations,
        backoff_base_us=_us("--backoff-base", backoff_base),
        backoff_cap_us=_us("--backoff-cap", backoff_cap),
        on_failure=None if on_failure is None else OnFailure(on_failure),
    )
    if asked == Policy() and limit is None and not clear:
        raise Invalid("nothing to set: use at least one option, or --clear")
    _check_known(store, queue, create)
    before = None if clear else find_queue(store, queue)
    policy = asked if before is None or before.policy is None else _over(asked, before.policy)
    check_backoff(f"queue {queue!r}", policy)
    if clear or asked != Policy():
        store.set_policy(queue, policy, by=by, reason=reason)
    places = _set_limit(store, queue, limit, clear, by, reason)
    shown = [_shown(policy) or "no policy", *([] if places is None else [f"limit {places:,}"])]
    emit(as_json, {"queue": queue, "policy": _policy(policy), "limit": places}, f"queue {queue}: {', '.join(shown)}")


def _set_limit(store: Store, queue: str, limit: int | None, clear: bool, by: str, reason: str) -> int | None:
    """Set or clear the queue's limit, and return its number of places afterwards."""
    name = QUEUE_LIMIT + queue
    if limit is not None:
        store.set_limit(name, LimitTerms(limit), by=by, reason=reason)
    elif clear:
        store.clear_limit(name, by=by, reason=reason)
    view = store.limit(name, limit=1)
    return None if view is None else view.terms.places


def _check_known(store: Store, queue: str, create: bool) -> None:
    """Refuse an unknown queue. Its first job creates a queue, so a misspelt name would seem to work."""
    if create or find_queue(store, queue) is not None:
        return
    known = [view.name for view in all_queues(store)]
    raise NotFound(
        f"there is no queue {queue!r}{did_you_mean(queue, known) or '.'} "
        f"Known queues: {listed(known) or 'none'}. Use --create to do it anyway"
    )


def _us(what: str, seconds: float | None, least_us: int = 0) -> int | None:
    return None if seconds is None else microseconds(what, seconds, least_us=least_us)


def _over(policy: Policy, before: Policy) -> Policy:
    fields: dict[str, Any] = msgspec.structs.asdict(before)
    fields |= {name: value for name, value in msgspec.structs.asdict(policy).items() if value is not None}
    return Policy(**fields)


def _shown(policy: Policy | None) -> str:
    return " ".join(f"{name}={value}" for name, value in _policy(policy).items())


def _policy(policy: Policy | None) -> dict[str, Any]:
    """Return the settings, with durations in seconds."""
    if policy is None:
        return {}
    return {
        (name.removesuffix("_us") + "_s" if name.endswith("_us") else name): (
            value / SECOND if name.endswith("_us") else value
        )
        for name, value in msgspec.structs.asdict(policy).items()
        if value is not None
    }
