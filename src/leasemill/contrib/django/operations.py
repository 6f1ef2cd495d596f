"""One version of the store's tables as an operation of a Django migration.

Runs the store's own SQL, on the one database that holds the store, and writes it down where `leasemill db migrate`
does: either finds what the other has applied. Forward only, as the SQL is. What must never happen here: other SQL than
`leasemill db migrate` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import transaction
from django.db.migrations import Migration
from django.db.migrations.exceptions import IrreversibleError
from django.db.migrations.operations.base import Operation, OperationCategory

from leasemill.contrib.django.configuration import configuration
from leasemill.errors import Unavailable

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState

    from leasemill.store.postgres.admin.migrate import Migration as SqlVersion


class StoreVersion(Operation):
    """Bring the store's tables to a version."""

    category = OperationCategory.SQL
    reversible = True
    """Asked before `database_backwards`, which says why it refuses."""

    def __init__(self, version: int) -> None:
        self.version = version

    def describe(self) -> str:
        return f"Bring the tables of Leasemill to version {self.version}"

    @property
    def migration_name_fragment(self) -> str:
        return f"version_{self.version}"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Change no state: no model describes the tables, which are reached through the store."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        chosen = configuration()
        if schema_editor.connection.alias != chosen.database or schema_editor.connection.vendor != "postgresql":
            return
        editor = _Editor(schema_editor, chosen.schema)
        one = _sql_version(self.version)
        if schema_editor.collect_sql:  # sqlmigrate: nothing is looked up
            editor.begin()
            editor.apply(one)
            return
        editor.apply_in_turn(one)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        chosen = configuration()
        if schema_editor.connection.alias != chosen.database:
            return
        raise IrreversibleError(
            "the tables of Leasemill have no way back, because jobs would be lost. To remove the store with all its "
            f'jobs: drop schema "{chosen.schema}" cascade, then manage.py migrate --fake leasemill zero'
        )


class _Editor:
    """A schema editor of Django's, for one schema of ours."""

    def __init__(self, editor: BaseDatabaseSchemaEditor, schema: str) -> None:
        from leasemill.store.postgres.admin import locks, migrate
        from leasemill.store.postgres.statements import check_schema, statement

        check_schema(schema)
        self._locks = locks
        self._migrate = migrate
        self._statement = statement
        self._editor = editor
        self._schema = schema
        self._table = f'"{schema}".migrations'

    def apply_in_turn(self, one: SqlVersion) -> None:
        """Unless it is there. A try that does not get its locks is rolled back to a savepoint, which releases those it
        has; then it is repeated, as `leasemill db migrate` does. Two that migrate at once take turns."""
        connection = self._editor.connection

        def attempt(lock_timeout_ms: int) -> None:
            with transaction.atomic(using=connection.alias):
                self._query("select set_config('lock_timeout', %s, true)", [f"{lock_timeout_ms}ms"])
                lock = self._locks.lock_name(self._schema)
                self._query("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
                if one.version > applied_version(connection, self._schema):
                    self.begin()
                    self.apply(one)

        what = f"migration {one.name}"
        try:
            self._locks.keep_trying(attempt, self._query, self._schema, lambda: what, self._migrate.LOGGER.warning)
        except Unavailable as error:
            raise CommandError(str(error)) from error

    def begin(self) -> None:
        if self._editor.collect_sql or not self._has_schema():
            self._execute(f'create schema if not exists "{self._schema}"')
        self._execute(self._migrate.TABLE.format(self._table))

    def apply(self, one: SqlVersion) -> None:
        self._execute(self._statement(one.text, self._schema).text.decode())
        self._execute(f"insert into {self._table} (version, name) values ({one.version}, '{one.name}')")

    def _has_schema(self) -> bool:
        """IF NOT EXISTS would need the right to make schemas where somebody else has made this one."""
        return bool(self._query("select true from pg_namespace where nspname = %s", [self._schema]))

    def _query(self, text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._editor.connection.cursor() as cursor:
            cursor.execute(text, values)
            return list(cursor.fetchall())

    def _execute(self, text: str) -> None:
        self._editor.execute(text.rstrip().rstrip(";"), params=None)


def applied_version(connection: Any, schema: str) -> int:
    """The latest version of the store's tables in a schema; 0: there are none."""
    table = f'"{schema}".migrations'
    with connection.cursor() as cursor:
        cursor.execute("select to_regclass(%s) is not null", [table])
        if not cursor.fetchone()[0]:
            return 0
        cursor.execute(f"select coalesce(max(version), 0) from {table}")
        return int(cursor.fetchone()[0])


def _sql_version(version: int) -> SqlVersion:
    from leasemill.store.postgres.admin.migrate import migrations

    return next(one for one in migrations() if one.version == version)


def store_migration(name: str, previous: str | None) -> type[Migration]:
    """The Django migration of one version: `Migration = store_migration(__name__, "0001_tables")`."""
    version = int(name.rpartition(".")[2].partition("_")[0])
    attributes: dict[str, Any] = {
        "__module__": name,
        "initial": previous is None,
        "dependencies": [] if previous is None else [("leasemill", previous)],
        "operations": [StoreVersion(version)],
    }
    return type("Migration", (Migration,), attributes)
