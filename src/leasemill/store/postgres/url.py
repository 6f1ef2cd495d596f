"""`postgresql://…?schema=…`: what may stand in a URL. What is not ours is libpq's: TLS, timeouts, several hosts."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import check_schema


class PostgresOptions(Struct, frozen=True):
    """Options of the store; every other one in the URL is handed to libpq."""

    schema: str = "leasemill"
    pool_size: int = 10
    pool_timeout_s: float = 10.0
    retry_for_s: float = 5.0
    statement_timeout_s: float = 30.0
    lock_timeout_s: float = 10.0
    listen: bool = True
    prepare: bool = True
    session_settings: bool = True
    auto_migrate: bool = False
    retain_for_s: float = 24 * 3600
    retain_count: int = 1_000_000


OWN: Final = frozenset(PostgresOptions.__struct_fields__)


def parse_url(url: str) -> tuple[str, PostgresOptions]:
    """The connection string for libpq, and the store's own options."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise Invalid(f"{url!r} names no PostgreSQL: write postgresql://user@host/database")
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    try:
        options = msgspec.convert({name: value for name, value in pairs if name in OWN}, PostgresOptions, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"an option of the store's URL is wrong: {error}; the options are {', '.join(sorted(OWN))}"
        ) from None
    if options.pool_size < 1:
        raise Invalid("pool_size must be at least 1")
    check_schema(options.schema)
    others = urlencode([(name, value) for name, value in pairs if name not in OWN])
    return urlunsplit(("postgresql", parts.netloc, parts.path, others, parts.fragment)), options
