"""`leasemill limits`: list and show limits, set their numbers, and clear what was set."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click
import msgspec

from leasemill.cli.output import emit, emit_table, json_instant, print_fields, print_json, print_table
from leasemill.cli.quantities import as_limit_rate
from leasemill.cli.store_options import acting_on_store, limit_option, on_store
from leasemill.errors import Invalid, NotFound
from leasemill.kernel.commands import LimitKeyView, LimitView
from leasemill.kernel.model import QUEUE_LIMIT, SECOND, LimitTerms
from leasemill.operator.listing import PAGE, all_limits
from leasemill.operator.wording import did_you_mean, instant, listed, numbers, span
from leasemill.store.base import Store


@click.group()
def limits() -> None:
    """List, show, set and clear limits.

    The limit of a queue is named `queue:NAME`.
    """


@limits.command("list")
@limit_option()
@on_store
def list_limits(store: Store, limit: int, as_json: bool) -> None:
    """List limits. For each: its numbers, the places that are held, and how many jobs wait."""
    now, found = store.time(), list(islice(all_limits(store), limit + 1))
    emit_table(
        as_json,
        map(_document, found[:limit]),
        ("limit", "numbers", "from", "held", "waiting", "next"),
        (
            (
                view.name,
                numbers(view.terms),
                _source(view),
                f"{view.held:,}",
                f"{view.waiting:,}",
                _next(view.opens_at, now),
            )
            for view in found[:limit]
        ),
        f"there are more: --limit {2 * limit}" if len(found) > limit else "",
    )


@limits.command()
@click.argument("name")
@click.option("--key", help="Only this key.")
@limit_option("keys")
@on_store
def show(store: Store, name: str, key: str | None, limit: int, as_json: bool) -> None:
    """Show a limit. Prints its numbers and who set them, who holds its places, and its keys in use."""
    view = store.limit(name, key=key, limit=limit)
    if view is None:
        raise _unknown(store, name)
    if as_json:
        print_json(_document(view) | {"keys": [_key_document(one) for one in view.keys]})
        return
    record, now = view.record, store.time()
    lines = [("limit", view.name), ("numbers", numbers(view.terms))]
    if record.declared is not None:
        lines.append(("code", f"{numbers(record.declared)}, by {record.declared_by} at {instant(record.declared_at)}"))
    if record.set is not None:
        who = f"by {record.set_by} at {instant(record.set_at)} ({record.reason})"
        lines.append(("operator", f"{numbers(record.set)}, {who}"))
    lines += [("held", _held(view.held, view.holders)), ("waiting", f"{view.waiting:,}")]
    if view.opens_at is not None:
        lines.append(("next", f"{instant(view.opens_at)} ({_next(view.opens_at, now)})"))
    print_fields(lines)
    if view.keys:
        print_table(
            ("key", "held", "waiting", "next", "holders"),
            [
                (one.key, f"{one.held:,}", f"{one.waiting:,}", _next(one.opens_at, now), listed(one.holders) or "-")
                for one in view.keys
            ],
        )


@limits.command("set")
@click.argument("name")
@click.option("--places", type=click.IntRange(0), help="How many jobs may run at a time; 0: none.")
@click.option(
    "--rate", type=as_limit_rate, metavar="N/s", help="How many jobs may start in a period: 50/s, 100/min, 1/d."
)
@click.option("--burst", type=click.IntRange(1), help="With --rate: how many may start at once. Default: 1.")
@click.option("--create", is_flag=True, help="Allow a limit that the store does not know yet.")
@acting_on_store
def set_limit(
    store: Store,
    name: str,
    places: int | None,
    rate: tuple[int, int] | None,
    burst: int | None,
    create: bool,
    reason: str,
    by: str,
    as_json: bool,
) -> None:
    """Set the numbers of a limit, for claims from now on. Numbers you leave out stay unchanged.

    They override the code until they are cleared. A lower number does not stop running jobs.
    """
    if places is None and rate is None:
        raise Invalid("nothing to set: use --places or --rate" + (", and --burst with --rate" if burst else ""))
    if burst is not None and rate is None:
        raise Invalid("--burst needs --rate")
    if not create and store.limit(name, limit=1) is None:
        raise _unknown(store, name, " Use --create to do it anyway")
    per = (None, None, None) if rate is None else (*rate, burst or 1)
    store.set_limit(name, LimitTerms(places, *per), by=by, reason=reason)
    _print_terms(store, name, as_json)


@limits.command()
@click.argument("name")
@acting_on_store
def clear(store: Store, name: str, reason: str, by: str, as_json: bool) -> None:
    """Remove what operators have set. The numbers in the code apply again."""
    if store.limit(name, limit=1) is None:
        raise _unknown(store, name)
    store.clear_limit(name, by=by, reason=reason)
    _print_terms(store, name, as_json)


def _print_terms(store: Store, name: str, as_json: bool) -> None:
    """Print the numbers of a limit that apply now."""
    view = store.limit(name, limit=1)
    terms = LimitTerms() if view is None else view.terms
    emit(as_json, {"limit": name, "terms": _terms(terms)}, f"{_title(name)}: {numbers(terms)}")


def _unknown(store: Store, name: str, hint: str = "") -> NotFound:
    known = [view.name for view in islice(all_limits(store), PAGE)]
    return NotFound(
        f"there is no limit {name!r}{did_you_mean(name, known) or '.'} Known limits: {listed(known) or 'none'}.{hint}"
    )


def _title(name: str) -> str:
    return f"queue {name.removeprefix(QUEUE_LIMIT)}" if name.startswith(QUEUE_LIMIT) else f"limit {name}"


def _source(view: LimitView) -> str:
    if view.record.set is not None:
        return "operator"
    return "-" if view.record.declared is None else "code"


def _next(opens_at: int | None, now: int) -> str:
    return "-" if opens_at is None else f"in {span(max(0, opens_at - now))}"


def _held(held: int, holders: tuple[str, ...]) -> str:
    return f"{held:,}" + (f", by {listed(holders)}" if holders else "")


def _document(view: LimitView) -> dict[str, Any]:
    record = view.record
    return {
        "limit": view.name,
        "terms": _terms(view.terms),
        "source": _source(view),
        "declared": None if record.declared is None else _terms(record.declared),
        "declared_by": record.declared_by,
        "set": None if record.set is None else _terms(record.set),
        "set_by": record.set_by,
        "reason": record.reason,
        "held": view.held,
        "waiting": view.waiting,
        "holders": view.holders,
        "opens_at": json_instant(view.opens_at),
    }


def _key_document(one: LimitKeyView) -> dict[str, Any]:
    return msgspec.structs.asdict(one) | {"opens_at": json_instant(one.opens_at)}


def _terms(terms: LimitTerms) -> dict[str, Any]:
    """Return the numbers that apply, with durations in seconds."""
    fields = {"places": terms.places, "rate": terms.rate, "burst": terms.burst}
    per_s = None if terms.per_us is None else terms.per_us / SECOND
    return {name: value for name, value in (fields | {"per_s": per_s}).items() if value is not None}
