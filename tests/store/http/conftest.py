"""PostgreSQL behind a server: the fixtures of its own tests."""

from tests.store.postgres.conftest import admin, postgres_url, schema, server_url

__all__ = ["admin", "postgres_url", "schema", "server_url"]
