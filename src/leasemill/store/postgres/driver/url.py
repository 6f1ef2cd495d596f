"""`postgresql://…?schema=…`: what may stand in a URL. What is not ours is libpq's: TLS, timeouts, several hosts.

Also what both ends of a connection are given so that a network that drops packets without a word is noticed: a URL's
own values win.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec
import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict

from leasemill.errors import Invalid
from leasemill.store.postgres.statements import check_schema
from leasemill.store.url import check_numbers, hidden_password

SynchronousCommit: TypeAlias = Literal["off", "local", "remote_write", "on", "remote_apply"]
"""How durable a COMMIT is when it returns, from the least to the most: PostgreSQL's setting."""


class PostgresOptions(Struct, frozen=True):
    """Options of the store; every other one in the URL is handed to libpq."""

    schema: str = "leasemill"
    pool_size: int = 10
    commit_pool_size: int = 10
    pool_timeout_s: float = 10.0
    retry_for_s: float = 5.0
    statement_timeout_s: float = 30.0
    lock_timeout_s: float = 10.0
    listen: bool = True
    prepare: bool = True
    session_settings: bool = True
    synchronous_commit: SynchronousCommit | None = None
    auto_migrate: bool = False
    retain_for_s: float = 24 * 3600
    retain_count: int = 1_000_000


OWN: Final = frozenset(PostgresOptions.__struct_fields__)
MOST: Final = {"statement_timeout_s": 2_000_000, "lock_timeout_s": 2_000_000}
"""The server counts them in milliseconds, up to 2^31."""
UNKNOWN_OPTION: Final = re.compile(r'^invalid URI query parameter: "([a-z0-9_]+)"')
"""How libpq refuses one. Its other messages quote parts that may be secret."""


NETWORK: Final = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 6_000,
}
"""TCP repeats what was not acknowledged after 0.2, 0.4, 0.8 … s, a connection attempt after 1, 2, 4 … s. Given up early
and begun again, no pause between two packets is longer than 3 s, so work goes on soon after the network is back."""

SERVER_NETWORK: Final = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
"""The server ends the session of a client that vanished, with its transaction and locks, after about ten seconds."""


def network_parameters(conninfo: str) -> dict[str, Any]:
    """Return the parameters for libpq beside the URL: those of NETWORK that neither the URL nor the environment has."""
    known = conninfo_to_dict(conninfo)
    if "PGCONNECT_TIMEOUT" in os.environ:
        known.setdefault("connect_timeout", os.environ["PGCONNECT_TIMEOUT"])
    return {name: value for name, value in NETWORK.items() if name not in known}


def session_options(conninfo: str, settings: Mapping[str, str]) -> str:
    """The session's settings at its start; those of the URL come last, and win."""
    own = conninfo_to_dict(conninfo).get("options") or ""
    return f"{' '.join(f'-c {name}={value}' for name, value in settings.items())} {own}".rstrip()


def parse_url(url: str) -> tuple[str, PostgresOptions]:
    """The connection string for libpq, and the store's own options. What is refused is not quoted: it may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable() from None
    if parts.scheme not in {"postgresql", "postgres"}:
        raise Invalid(
            f"{hidden_password(url)!r} is not the URL of a PostgreSQL store: write postgresql://user@host/database"
        )
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise _unreadable()
    pieces = [piece for piece in parts.query.split("&") if piece]
    own = dict(pair for piece in pieces for pair in parse_qsl(piece, keep_blank_values=True) if pair[0] in OWN)
    try:
        options = msgspec.convert(own, PostgresOptions, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"an option of the store's URL is wrong: {error}; the options are {', '.join(sorted(OWN))}"
        ) from None
    if options.pool_size < 1 or options.commit_pool_size < 1:
        raise Invalid("pool_size and commit_pool_size must be at least 1")
    check_numbers(options, MOST)
    check_schema(options.schema)
    others = "&".join(piece for piece in pieces if piece.partition("=")[0] not in OWN)
    conninfo = f"postgresql://{parts.netloc}{parts.path}{'?' if others else ''}{others}"
    _check_readable(conninfo)
    return conninfo, options


def _check_readable(conninfo: str) -> None:
    """libpq quotes what it cannot read, so it reads it here first, and only the name of an option is shown."""
    try:
        ports = str(conninfo_to_dict(conninfo).get("port") or "")
    except psycopg.Error as error:
        unknown = UNKNOWN_OPTION.search(str(error))
        if unknown is not None and "@" not in conninfo.partition("?")[2]:  # else it may be part of a password
            raise Invalid(
                f"the store's URL has an unknown option {unknown[1]!r}: use {', '.join(sorted(OWN))}, "
                "or an option of libpq such as sslmode"
            ) from None
        raise _unreadable() from None
    if not all(port.isdecimal() for port in ports.split(",") if port):
        raise _unreadable()


def _unreadable() -> Invalid:
    return Invalid(
        "the store's URL cannot be read: write postgresql://user@host/database?option=value, with options that libpq "
        "knows, and % and two digits for special characters in user and password (%40 is @, %2F is /)"
    )
