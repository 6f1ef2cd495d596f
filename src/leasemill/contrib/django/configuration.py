"""The setting `LEASEMILL`: which store the jobs of the project go to.

    LEASEMILL = {
        "DATABASE": "default",            # an alias of DATABASES: it holds the jobs, and its transactions enqueue them
        "SCHEMA": "leasemill",            # the PostgreSQL schema of the tables
        "OPTIONS": {"pool_size": 5},      # options of the store, docs/postgres.md
        "AUTODISCOVER": ["jobs", "tasks"],
    }

`"URL"` names a store instead. With a URL and a DATABASE, the store has connections of its own to the same database.
Read at each use, so `override_settings` works. What must never happen here: a test that enqueues into the store that
the project's URL names, where the project's workers would run its jobs on the project's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from leasemill.errors import Invalid
from leasemill.operator.wording import did_you_mean

NAME: Final = "LEASEMILL"
KEYS: Final = ("DATABASE", "SCHEMA", "OPTIONS", "AUTODISCOVER", "URL")
MODULES: Final = ("jobs", "tasks")
DEFAULT_SCHEMA: Final = "leasemill"
IN_MEMORY: Final = "memory:"
TEST_HOST: Final = "testserver"

_of_project: object = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """The meaning of the setting `LEASEMILL`."""

    url: str | None = None
    """The URL of the store; None: it is in `database`."""
    database: str | None = "default"
    """The alias whose transactions enqueue joins; None: the store is elsewhere."""
    schema: str = DEFAULT_SCHEMA
    options: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[str] = MODULES
    is_for_tests: bool = False
    """A test is running, and has not overridden the project's setting."""

    @property
    def url_in_use(self) -> str:
        """The URL of the store to open. In tests it is in the test database, or in memory."""
        if self.url is None or not self.is_for_tests:
            return self.store_url
        return IN_MEMORY if self.database is None else database_url(self.database, self.schema, {})

    @property
    def store_url(self) -> str:
        if self.url is not None:
            return self.url
        assert self.database is not None
        return database_url(self.database, self.schema, self.options)


class WrongSetting(Invalid, ImproperlyConfigured):
    """A setting that cannot be: as Django raises it, and as the command line shows it."""


def configuration() -> Configuration:
    """`LEASEMILL` as it is set now; refuses unknown and conflicting settings."""
    given = getattr(settings, NAME, {})
    if not isinstance(given, Mapping):
        raise WrongSetting(f'{NAME} is a {type(given).__name__}: write {NAME} = {{"DATABASE": "default"}}')
    for key in given:
        if key not in KEYS:
            raise WrongSetting(
                f"{NAME} has no setting {key!r}{did_you_mean(str(key), KEYS)} (there are {', '.join(KEYS)})"
            )
    url = given.get("URL")
    if url is not None and ("SCHEMA" in given or "OPTIONS" in given):
        raise WrongSetting(
            f'{NAME}: with "URL" write the schema and the options into it, for example postgresql://…?schema=jobs'
        )
    return Configuration(
        url=url,
        database=given.get("DATABASE", "default" if url is None else None),
        schema=given.get("SCHEMA", DEFAULT_SCHEMA) if url is None else _schema_in(url),
        options=given.get("OPTIONS", {}),
        modules=given.get("AUTODISCOVER", MODULES),
        is_for_tests=given is _of_project and is_test_environment(),
    )


def remember_project() -> None:
    """The setting as it is now is the project's; another one is a test's, which gets the store that it names."""
    global _of_project  # noqa: PLW0603  (there is one project in a process, as there is one `settings`)
    _of_project = getattr(settings, NAME, None)


def is_test_environment() -> bool:
    """Return True if `setup_test_environment()` was called, as by Django's test runner and by pytest-django: it makes
    the outbox of mails, and allows the host of the test client. A project in use may have one of the two, but not
    both."""
    return hasattr(mail, "outbox") and TEST_HOST in settings.ALLOWED_HOSTS


def _schema_in(url: str) -> str:
    if not url.startswith(("postgresql:", "postgres:")):
        return DEFAULT_SCHEMA
    from leasemill.store.postgres.driver.url import parse_url

    return parse_url(url)[1].schema


def check_database(alias: str) -> None:
    """Refuse an alias that is not there, or not PostgreSQL."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        known = ", ".join(map(repr, connections))
        raise WrongSetting(
            f'{NAME}["DATABASE"] is {alias!r}, which DATABASES does not have (it has {known}): name one of them, or '
            'give a store as "URL"'
        ) from None
    if connection.vendor != "postgresql":
        raise WrongSetting(
            f'{NAME}["DATABASE"] is {alias!r}, a database of {connection.vendor}: jobs live in PostgreSQL. Name '
            f'another alias, or a store beside the database: {NAME} = {{"URL": "file:/var/lib/shop/jobs"}}'
        )


def is_same_database(alias: str, url: str) -> bool:
    """Return True if a store's URL leads to the database of an alias, by their addresses."""
    if not url.startswith(("postgresql:", "postgres:")):
        return False
    from psycopg.conninfo import conninfo_to_dict

    from leasemill.store.postgres.driver.url import parse_url

    given = conninfo_to_dict(parse_url(url)[0])
    params = connections[alias].get_connection_params()
    return all(str(given.get(name) or "") == str(params.get(name) or "") for name in ("host", "port", "dbname"))


def database_url(alias: str, schema: str, options: Mapping[str, Any]) -> str:
    """A store's URL for the database of an alias, with what its settings give libpq."""
    check_database(alias)
    from psycopg.pq import Conninfo  # an extra; Django has its own way to report that it is missing

    connection = connections[alias]
    keywords = {one.keyword.decode() for one in Conninfo.get_defaults()} - {"client_encoding"}
    given = {name: str(value) for name, value in connection.get_connection_params().items() if name in keywords}
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:  # Django sets it on its own connections; ours get it when they are made
        escaped = str(role).replace("\\", "\\\\").replace(" ", "\\ ")
        given["options"] = f"{given.get('options', '')} -c role={escaped}".lstrip()
    host = given.get("host", "")
    place = ""
    if host and not set(host) & set("/,:"):  # a folder with a socket, several hosts and IPv6 are options
        user, port = given.pop("user", ""), given.pop("port", "")
        place = f"{quote(user, safe='')}{'@' if user else ''}{given.pop('host')}{':' if port else ''}{port}"
    path = quote(given.pop("dbname", ""), safe="")
    query = urlencode(
        {**given, "schema": schema, **{name: _text(value) for name, value in options.items()}}, quote_via=quote
    )
    return f"postgresql://{place}/{path}?{query}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
