"""`manage.py migrate`: the store's own SQL, one Django migration for each of its versions."""

from __future__ import annotations

import logging
from importlib import import_module
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

import leasemill.contrib.django.migrations as folder
from leasemill.contrib.django.checks import check_tables
from leasemill.store.postgres.admin.migrate import migrations

FILE = (
    'from leasemill.contrib.django.operations import store_migration\n\nMigration = store_migration(__name__, "{}")\n'
)


def query(sql: str, alias: str = "default") -> list[tuple[object, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def test_every_version_of_the_sql_has_its_django_migration() -> None:
    names = [one.name for one in migrations()]
    have = sorted(path.stem for path in Path(str(folder.__file__)).parent.glob("[0-9]*.py"))
    missing = [name for name in names if name not in have]
    assert not missing, f"write migrations/{missing[0]}.py: " + FILE.format(names[names.index(missing[0]) - 1])
    assert have == names
    for before, name in zip([None, *names], names, strict=False):
        migration = import_module(f"{folder.__name__}.{name}").Migration
        assert [one.version for one in migration.operations] == [int(name[:4])]
        assert migration.dependencies == ([] if before is None else [("leasemill", before)])


def test_migrate_made_the_tables_of_the_store_s_database_alone() -> None:
    assert query("select max(version) from leasemill.migrations") == [(migrations()[-1].version,)]
    assert query("select to_regclass('leasemill.jobs')::text", "other") == [(None,)]


def test_no_model_lacks_a_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@override_settings(LEASEMILL={"DATABASE": "other", "SCHEMA": "work"})
def test_the_tables_of_another_alias_and_schema_work_beside_leasemill_db_migrate(databases: None) -> None:
    call_command("migrate", database="other", verbosity=0)
    call_command("migrate", "leasemill", "zero", database="other", fake=True, verbosity=0)
    with connections["other"].cursor() as cursor:
        cursor.execute("drop schema if exists work cascade")
    assert [one.id for one in check_tables(databases=["other"])] == ["leasemill.W002"]
    call_command("leasemill", "db", "migrate")
    applied = query("select version, applied_at from work.migrations order by version", "other")
    assert check_tables(databases=["other"]) == []

    call_command("migrate", "leasemill", database="other", verbosity=0)

    assert query("select version, applied_at from work.migrations order by version", "other") == applied
    loader = MigrationLoader(connections["other"])
    assert {name for label, name in loader.applied_migrations if label == "leasemill"} == {
        one.name for one in migrations()
    }


@override_settings(LEASEMILL={"DATABASE": "other", "SCHEMA": "old"})
def test_migrate_goes_on_where_an_older_version_stopped() -> None:
    call_command("migrate", "leasemill", "zero", database="other", fake=True, verbosity=0)
    call_command("migrate", "leasemill", "0003", database="other", verbosity=0)
    assert query("select max(version) from old.migrations", "other") == [(3,)]
    (found,) = check_tables(databases=["other"])
    assert "is at version 3, and this Leasemill needs" in found.msg
    assert found.hint == "Run manage.py migrate leasemill --database=other"

    call_command("migrate", "leasemill", database="other", verbosity=0, skip_checks=False)  # as the command line does
    assert check_tables(databases=["other"]) == []


@override_settings(LEASEMILL={"DATABASE": "other", "SCHEMA": "busy"})
def test_a_version_waits_for_its_locks_gives_way_and_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """By a savepoint of the migration's transaction. The reader is one that would deadlock with it."""
    call_command("migrate", "leasemill", "zero", database="other", fake=True, verbosity=0)
    call_command("migrate", "leasemill", "0007", database="other", verbosity=0)
    with psycopg.connect(**connections["other"].get_connection_params()) as reader:
        reader.execute("select from busy.queues")

        def end_it(record: logging.LogRecord) -> bool:
            if not record.getMessage().startswith("migration 0008_rules waits for a lock held by session "):
                return False
            reader.execute("select from busy.jobs")
            reader.commit()
            return True

        caplog.handler.addFilter(end_it)
        try:
            call_command("migrate", "leasemill", database="other", verbosity=0)
        finally:
            caplog.handler.removeFilter(end_it)
    assert len(caplog.records) == 1
    assert query("select max(version) from busy.migrations", "other") == [(migrations()[-1].version,)]


def test_there_is_no_way_back_and_the_error_shows_how_to_remove_the_store() -> None:
    with pytest.raises(IrreversibleError, match=r'drop schema "leasemill" cascade, then manage.py migrate --fake'):
        call_command("migrate", "leasemill", "0001", verbosity=0)
    assert query("select max(version) from leasemill.migrations") == [(migrations()[-1].version,)]
    assert query("select to_regclass('leasemill.jobs') is not null") == [(True,)]


def test_sqlmigrate_prints_the_sql_of_a_version() -> None:
    out = StringIO()
    call_command("sqlmigrate", "leasemill", "0001", stdout=out)
    text = out.getvalue()
    assert 'create schema if not exists "leasemill";' in text
    assert "create table" in text
    assert "insert into \"leasemill\".migrations (version, name) values (1, '0001_tables');" in text
