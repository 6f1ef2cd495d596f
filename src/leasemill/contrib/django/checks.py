"""System checks: `manage.py check` reports a store that cannot work, and `check --database …` missing tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from leasemill.contrib.django.application import app
from leasemill.contrib.django.configuration import Configuration, check_database, configuration
from leasemill.contrib.django.operations import applied_version
from leasemill.errors import LeasemillError


@register()
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """E001: the settings are wrong. W001: enqueue does not join transactions."""
    try:
        chosen = configuration()
        if chosen.database is not None:
            check_database(chosen.database)
        _check_url(chosen)
    except (ImproperlyConfigured, LeasemillError) as error:
        return [Error(str(error), id="leasemill.E001")]
    if chosen.database is None and app.jobs and not chosen.store_url.startswith("memory:"):
        return [
            Caution(
                "Jobs do not go to a database of this project, so they do not join its transactions: a job that is "
                "enqueued in transaction.atomic() can run before the commit, and stays after a rollback.",
                hint="Enqueue in transaction.on_commit(...), or let LEASEMILL name a DATABASE.",
                id="leasemill.W001",
            )
        ]
    return []


def _check_url(chosen: Configuration) -> None:
    scheme = chosen.store_url.partition(":")[0]
    if scheme in {"postgresql", "postgres"}:
        from leasemill.store.postgres.driver.url import parse_url

        parse_url(chosen.store_url)
    elif scheme not in {"file", "memory", "http", "https"}:
        raise ImproperlyConfigured(
            'LEASEMILL["URL"] is not the URL of a store: write postgresql://user@host/database, file:PATH, '
            "http://host:port or memory:"
        )
    elif chosen.database is not None:
        raise ImproperlyConfigured(
            'LEASEMILL has a "DATABASE" beside a "URL" that is not PostgreSQL: leave one of them out'
        )


@register(Tags.database)
def check_tables(app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W002: the tables are missing or old. E003: the database cannot be queried.

    `manage.py migrate` runs this check first and ends if it finds an error, so what it mends must be a warning.
    """
    try:
        chosen = configuration()
        if chosen.database is None or chosen.database not in (databases or ()):
            return []
        check_database(chosen.database)
    except ImproperlyConfigured:
        return []  # the other check reports it
    from leasemill.store.postgres.admin.migrate import migrations

    wanted = migrations()[-1].version
    try:
        found = applied_version(connections[chosen.database], chosen.schema)
    except DatabaseError as error:
        return [Error(f"Database {chosen.database!r} cannot be queried: {error}", id="leasemill.E003")]
    if found >= wanted:
        return []
    state = f"is at version {found}, and this Leasemill needs {wanted}" if found else "has no Leasemill tables"
    return [
        Caution(
            f"The schema {chosen.schema!r} of database {chosen.database!r} {state}.",
            hint=f"Run manage.py migrate leasemill{_option(chosen.database)}",
            id="leasemill.W002",
        )
    ]


def _option(alias: str) -> str:
    return "" if alias == "default" else f" --database={alias}"
