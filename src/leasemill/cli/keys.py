"""`leasemill keys`: create, list and revoke the keys of clients of `leasemill serve`.

What must never happen here: a secret that is printed anywhere but once, to standard output, when its key is created.
"""

from __future__ import annotations

from typing import Any

import click

from leasemill.cli.output import emit, emit_table, json_instant, print_json
from leasemill.cli.quantities import span_us
from leasemill.cli.store_options import by_option, json_option, on_store, refuse_memory, url_option
from leasemill.errors import NotFound, Refused
from leasemill.operator.wording import did_you_mean, instant
from leasemill.store.access_keys import ALL_QUEUES, AccessKey, new_key
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.system import WallClock
from leasemill.wire.routes import Role


@click.group()
def keys() -> None:
    """Create, list and revoke keys for `leasemill serve`.

    Run it with the URL of the server's store: keys cannot be managed through the server.
    """


@keys.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice([role.value for role in Role]),
    help="What the key is for; may be repeated.",
)
@click.option(
    "--queues",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Queues it is for, such as mail or 'billing.*'; may be repeated. Default: all.",
)
@click.option(
    "--expires", "expires_us", type=span_us, metavar="SPAN", help="Expire it after this time: 90d, 12h. Default: never."
)
@by_option
@url_option
@json_option
def create(
    name: str,
    roles: tuple[str, ...],
    patterns: tuple[str, ...],
    expires_us: int | None,
    by: str,
    url: str,
    as_json: bool,
) -> None:
    """Create a key and print it. It is shown only once: the store keeps only its digest.

    The name is recorded with everything an operator does with the key.
    """
    refuse_memory(url)
    now = WallClock().now()
    expires_at = None if expires_us is None else now + expires_us
    with open_store(url) as store:
        key, text = new_key(
            name=name, roles=map(Role, roles), now=now, by=by, queues=patterns or ALL_QUEUES, expires_at=expires_at
        )
        store.keys.add(key)
    if as_json:
        print_json({**_as_json(key, now), "key": text})
        return
    click.echo(text)
    click.echo(f"key {key.id} created: {_described(key)}. It is not shown again: store it now.", err=True)


@keys.command("list")
@click.option("--all", "with_all", is_flag=True, help="Include keys that were revoked or have expired.")
@on_store
def list_keys(store: Store, with_all: bool, as_json: bool) -> None:
    """List keys, oldest first. For each: what it is for, and when it was last used (to the minute)."""
    now = WallClock().now()
    found = [key for key in store.keys.all() if with_all or key.is_live(now)]
    emit_table(
        as_json,
        (_as_json(key, now) for key in found),
        ("id", "name", "roles", "queues", "created", "by", "expires", "last used", "state"),
        (
            (
                key.id,
                key.name,
                ",".join(_roles(key)),
                ",".join(key.queues),
                instant(key.created_at),
                key.created_by,
                "never" if key.expires_at is None else instant(key.expires_at),
                "never" if key.last_used_at is None else instant(key.last_used_at),
                _state(key, now),
            )
            for key in found
        ),
    )


@keys.command()
@click.argument("key", metavar="ID|NAME")
@by_option
@on_store
def revoke(store: Store, key: str, by: str, as_json: bool) -> None:
    """Revoke the key with this id or name. Running servers refuse it within about a second."""
    found = _find(store, key)
    after = store.keys.revoke(found.id, at=WallClock().now(), by=by)
    if after is None:
        raise NotFound(f"key {found.id} was removed meanwhile")
    note = "" if found.revoked_at is None else f" (it was already, by {after.revoked_by})"
    emit(as_json, _as_json(after, WallClock().now()), f"key {after.id} ({after.name}) revoked{note}")


def _find(store: Store, wanted: str) -> AccessKey:
    """Find a key by its id, or one that is not revoked by its name. The key itself is refused: it must be revoked."""
    if wanted.startswith("lm_"):
        raise Refused(
            "name the key's id or name, not the key itself: it is now in the history of your shell; revoke it"
        )
    found = store.keys.all()
    for key in found:
        if wanted == key.id or (wanted == key.name and key.revoked_at is None):
            return key
    names = [key.name for key in found if key.revoked_at is None]
    raise NotFound(f"no key {wanted!r}{did_you_mean(wanted, names)}: leasemill keys list shows them")


def _roles(key: AccessKey) -> list[str]:
    return [role.value for role in Role if role in key.roles]


def _described(key: AccessKey) -> str:
    until = "never expires" if key.expires_at is None else f"expires {instant(key.expires_at)}"
    return f"{key.name} may {', '.join(_roles(key))} on {_queues(key)}, {until}"


def _queues(key: AccessKey) -> str:
    return "all queues" if "*" in key.queues else ", ".join(key.queues)


def _state(key: AccessKey, now: int) -> str:
    if key.revoked_at is not None:
        return f"revoked by {key.revoked_by}"
    return "live" if key.is_live(now) else "expired"


def _as_json(key: AccessKey, now: int) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "roles": _roles(key),
        "queues": list(key.queues),
        "created_at": instant(key.created_at),
        "created_by": key.created_by,
        "expires_at": json_instant(key.expires_at),
        "revoked_at": json_instant(key.revoked_at),
        "revoked_by": key.revoked_by,
        "last_used_at": json_instant(key.last_used_at),
        "is_live": key.is_live(now),
    }
