"""`leasemill db`: the tables of a postgresql:// store: create them, show their version, check them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from leasemill.cli.output import emit
from leasemill.cli.progress import ShownProgress, quiet_option
from leasemill.cli.store_options import json_option, url_option
from leasemill.errors import Invalid, Refused
from leasemill.operator.wording import counted
from leasemill.store.url import URL_VARIABLE, hidden_password

if TYPE_CHECKING:
    import psycopg

EXIT_BEHIND = 1
EXIT_UNSOUND = 1


@click.group()
def db() -> None:
    """Create, migrate and check the tables of a postgresql:// store.

    The tables live in a schema of their own, by default `leasemill`; ?schema=… in the URL names another. All of these
    commands can be used while workers run. Exit codes: 0 up to date and sound, 1 not, 2 usage error, 3 unreachable.
    """


@db.command()
@quiet_option
@url_option
@json_option
def migrate(url: str, is_quiet: bool, as_json: bool) -> None:
    """Create the tables, or bring them up to date. Safe to repeat, and while workers run.

    Each version is one transaction, and what was applied stays. A version that does not get its locks within a minute,
    because a transaction on the tables is left open, ends the command with exit code 3: repeat it then.
    """
    with (
        _connected(url) as (connection, schema),
        ShownProgress("applied", "migration", is_quiet=is_quiet or as_json) as progress,
    ):
        from leasemill.store.postgres.admin.migrate import migrate as bring_up_to_date

        def reach(done: int, total: int) -> None:
            progress.note = ""
            progress.reach(done, total)

        def note(sentence: str) -> None:
            progress.note = sentence

        done = bring_up_to_date(connection, schema, reach, on_wait=note)
    names = [one.name for one in done]
    result = f": applied {', '.join(names)}" if names else " is up to date"
    emit(as_json, {"schema": schema, "applied": names}, f"schema {schema}{result}")


@db.command()
@url_option
@json_option
def status(url: str, as_json: bool) -> None:
    """Show the version of the tables and missing migrations."""
    with _connected(url) as (connection, schema):
        from leasemill.store.postgres.admin.migrate import (
            applied,
            is_too_new,
            migrations,
            too_new,
        )

        known = applied(connection, schema)
        row = connection.execute("show server_version").fetchone()
    if is_too_new(known):
        raise Refused(too_new(schema, known))
    missing = [one.name for one in migrations() if one.version > max(known, default=0)]  # what rules need is enough
    state = (
        f"lacks {', '.join(missing)}: run leasemill db migrate" if missing else f"is up to date, at version {known[-1]}"
    )
    document = {"schema": schema, "server": row[0] if row else None, "applied": known, "missing": missing}
    emit(as_json, document, f"schema {schema} {state}")
    if missing:
        raise SystemExit(EXIT_BEHIND)


@db.command()
@click.option(
    "--rebuild", is_flag=True, help="Rebuild what is derived from jobs and executions; writers wait meanwhile."
)
@quiet_option
@url_option
@json_option
def check(url: str, rebuild: bool, is_quiet: bool, as_json: bool) -> None:
    """Check that derived rows agree with jobs and executions. Reads everything.

    Also shows which settings of the server may lose jobs in a crash (warning) or in a failover (note). They do not
    change the exit code.
    """
    with (
        _connected(url) as (connection, schema),
        ShownProgress(f"checking schema {schema}", is_quiet=is_quiet or as_json) as progress,
    ):
        from leasemill.store.postgres.admin import check as checking
        from leasemill.store.postgres.admin.durability import durability

        settings = durability(connection)
        warnings, notes = [*settings.warnings(), *settings.role_warnings()], settings.notes()
        wrong = checking.check(connection, schema)
        if rebuild:
            progress.what = f"rebuilding schema {schema}"
            claimable = checking.rebuild(connection, schema)
            progress.what = f"checking schema {schema} again"
            found, wrong = wrong, checking.check(connection, schema)
            if not as_json:
                for sentence in found:
                    progress.echo(f"was wrong: {sentence}")
                progress.echo(f"schema {schema}: rebuilt, {counted(claimable, 'job')} can be claimed")
    document = {"schema": schema, "is_sound": not wrong, "wrong": wrong, "warnings": warnings, "notes": notes}
    lines = [*(f"warning: {one}" for one in warnings), *(f"note: {one}" for one in notes), *wrong]
    emit(as_json, document, *lines, f"schema {schema} is {'not ' if wrong else ''}sound")
    if wrong:
        raise SystemExit(EXIT_UNSOUND)


@contextmanager
def _connected(url: str) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    if not url.startswith(("postgresql:", "postgres:")):
        raise Invalid(
            f"{hidden_password(url)} is not a PostgreSQL store: "
            f"name one with --url postgresql://user@host/database, or in {URL_VARIABLE}"
        )
    try:
        import psycopg
    except ImportError:
        raise Invalid("postgresql:// needs psycopg: pip install 'leasemill[postgres]'") from None
    from leasemill.store.postgres.driver.errors import meaning, not_let_in, not_reached
    from leasemill.store.postgres.driver.url import network_parameters, parse_url

    conninfo, options = parse_url(url)
    given = {"application_name": "leasemill db", **network_parameters(conninfo)}
    try:
        connection = psycopg.connect(conninfo, autocommit=True, **given)
    except psycopg.Error as error:
        raise not_let_in(error) or not_reached(error) from error
    try:
        with connection:
            yield connection, options.schema
    except psycopg.Error as error:
        raise not_reached(error) if connection.broken else meaning(error, options.schema) from error
