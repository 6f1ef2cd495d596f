"""The pytest plugin: fixtures that bind apps to stores of a test's own. Installed with Leasemill; `-p no:leasemill`.

pytest imports this module in every run, before coverage is measured. So it is a module of its own, and imports nothing
of Leasemill before a fixture is used. What the fixtures do is in `leasemill.testing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from leasemill import App
    from leasemill.contrib.django.testing import TestJobs
    from leasemill.testing.binding import Binder
    from leasemill.testing.database import PostgresSchema
    from leasemill.testing.every_crash import EveryCrash, Point

MARKER = "leasemill(store): which store the fixture `leasemill` binds apps to: memory (the default), file, postgresql"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("leasemill_apps", "Apps that every test binds to an empty store: MODULE:APP ...", type="args")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    has_django = config.pluginmanager.hasplugin("django")
    config.pluginmanager.register(_WithDjango() if has_django else _WithoutDjango(), "leasemill-django")
    if names := config.getini("leasemill_apps"):
        config.pluginmanager.register(_BindsApps(names), "leasemill-apps")


@pytest.fixture
def leasemill(request: pytest.FixtureRequest) -> Iterator[Binder]:
    """`with leasemill(app) as jobs:` binds an app to an empty store whose clock the test moves."""
    from leasemill.testing.binding import Binder, check_kind

    numbers = count(1)

    def new_folder() -> Path:
        folder: Path = request.getfixturevalue("tmp_path")
        return folder / f"leasemill-{next(numbers)}"

    def database() -> PostgresSchema:
        schema: PostgresSchema = request.getfixturevalue("leasemill_postgres")
        return schema

    binder = Binder(check_kind(_marked(request)), new_folder, database)
    yield binder
    if binder.not_entered:
        pytest.fail("leasemill(app) alone binds nothing: write `with leasemill(app) as jobs:`", pytrace=False)


@pytest.fixture
def leasemill_every_crash(leasemill: Binder) -> EveryCrash:
    """`leasemill_every_crash(app, enqueue, effect=..., reset=...)` kills the job at every point."""
    from leasemill.testing.every_crash import EveryCrash

    return EveryCrash(leasemill)


@pytest.fixture
def leasemill_aevery_crash(leasemill_every_crash: EveryCrash) -> Callable[..., Awaitable[list[Point]]]:
    """`await leasemill_aevery_crash(...)`: the same in async tests."""
    return leasemill_every_crash.in_async_code


@pytest.fixture
def leasemill_postgres(leasemill_postgres_schema: PostgresSchema) -> PostgresSchema:
    """An empty schema on PostgreSQL: `url` for a store, `conninfo` for connections of your own."""
    leasemill_postgres_schema.empty()
    return leasemill_postgres_schema


@pytest.fixture(scope="session")
def leasemill_postgres_schema() -> Iterator[PostgresSchema]:
    """The schema of this run, on the server that LEASEMILL_TEST_POSTGRES_URL names, else on a temporary one."""
    from leasemill.testing.postgres import NoServer

    try:
        from leasemill.testing.database import postgres_schema
    except ImportError as error:
        pytest.fail(f'{error}: pip install "leasemill[postgres,testing]"', pytrace=False)
    with ExitStack() as stack:
        try:
            schema = stack.enter_context(postgres_schema())
        except NoServer as error:
            pytest.fail(str(error), pytrace=False)
        yield schema


class _WithDjango:
    """What pytest-django makes possible."""

    @pytest.fixture
    def leasemill_django(self, db: None) -> Iterator[TestJobs]:
        """The jobs of a Django project inside one test: `leasemill_django.run()` runs them.

        `db` is a parameter because pytest-django reads from the parameters which tests need a test database: requested
        in any other way, it would be the real one. The test's mark says whether it is a transaction.
        """
        from leasemill.contrib.django.testing import jobs_of_test

        with jobs_of_test() as jobs:
            yield jobs


class _WithoutDjango:
    @pytest.fixture
    def leasemill_django(self) -> None:
        """The jobs of a Django project, for which pytest-django is needed."""
        pytest.fail("the fixture leasemill_django needs pytest-django: pip install pytest-django", pytrace=False)


class _BindsApps:
    """What `leasemill_apps` adds: a fixture for every test."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    @pytest.fixture(autouse=True)
    def _leasemill_apps(self, leasemill: Binder) -> Iterator[None]:
        with leasemill.all_bound([_loaded(name) for name in self._names]):
            yield


def _loaded(name: str) -> App:
    from click import UsageError

    from leasemill import Refused
    from leasemill.cli.app_loader import load_app

    try:
        return load_app(name)
    except (UsageError, Refused) as error:
        raise pytest.UsageError(f"leasemill_apps: {error}") from None


def _marked(request: pytest.FixtureRequest) -> str:
    marker = request.node.get_closest_marker("leasemill")
    if marker is None:
        return "memory"
    given: dict[str, Any] = {**dict(zip(["store"], marker.args, strict=False)), **marker.kwargs}
    if len(marker.args) > 1 or list(given) != ["store"]:
        raise pytest.UsageError('write @pytest.mark.leasemill(store="file")')
    store: str = given["store"]
    return store
