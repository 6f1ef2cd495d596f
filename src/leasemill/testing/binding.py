"""`Binder`: binds apps to stores that are a test's own. What the fixture `leasemill` is.

A store in memory, in a folder or on PostgreSQL, always empty and always with a clock that the test moves. What must
never happen: a test that reaches the store that LEASEMILL_URL names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from leasemill.api.app import App
from leasemill.errors import Invalid
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.store.system import NANOSECONDS_PER_MICROSECOND
from leasemill.store.url import URL_VARIABLE
from leasemill.testing.clock import ManualClock, SeededEntropy
from leasemill.testing.jobs import Jobs

if TYPE_CHECKING:
    from leasemill.testing.database import PostgresSchema

StoreKind: TypeAlias = Literal["memory", "file", "postgresql"]
STORE_KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)


class Binder:
    """`with leasemill(app) as jobs`: inside the block the app's jobs go to an empty store whose clock is the test's."""

    def __init__(self, kind: StoreKind, new_folder: Callable[[], Path], database: Callable[[], PostgresSchema]) -> None:
        self.kind = kind
        """The store that apps are bound to by default."""
        self._new_folder = new_folder
        self._database = database
        self._on_database = 0
        self._bound: dict[App, Jobs] = {}
        self.not_entered = 0
        """Calls without `with`, which bind nothing."""

    def __call__(
        self, app: App, *, store: StoreKind | None = None, seed: int | None = None
    ) -> AbstractContextManager[Jobs]:
        """Bind an app; `store`: to which kind of store, `seed`: decides ids and random waits.

        An app that `leasemill_apps` has bound for every test is not bound again unless `store` or `seed` is given.
        """
        if not isinstance(app, App):
            raise Invalid(f"{app!r} is not a leasemill.App: write `with leasemill(app) as jobs:`")
        _check_may_bind(app)
        self.not_entered += 1
        return self._binding(app, store, seed)

    @contextmanager
    def _binding(self, app: App, store: StoreKind | None, seed: int | None) -> Iterator[Jobs]:
        self.not_entered -= 1
        if store is None and seed is None and app in self._bound:
            yield self._bound[app]
            return
        with self._opened(store or self.kind, seed) as (opened, clock, warn), app.bound_to(opened):
            yield Jobs(app, clock, warn)

    @contextmanager
    def all_bound(self, apps: Sequence[App]) -> Iterator[None]:
        """Bind several apps to one store."""
        for app in apps:
            _check_may_bind(app)
        with self._opened(self.kind, None) as (opened, clock, warn), ExitStack() as stack:
            for app in apps:
                stack.enter_context(app.bound_to(opened))
                self._bound[app] = Jobs(app, clock, warn)
            try:
                yield
            finally:
                self._bound.clear()

    @contextmanager
    def _opened(self, kind: StoreKind, seed: int | None) -> Iterator[tuple[Store, ManualClock, Callable[[], None]]]:
        clock = ManualClock()
        entropy = None if seed is None else SeededEntropy(seed)
        with _without_url(), ExitStack() as stack:
            store: Store
            warn: Callable[[], None] = lambda: None  # noqa: E731
            match check_kind(kind):
                case "memory":
                    store = MemoryStore(clock, entropy)
                case "file":
                    from leasemill.store.file.store import FileStore  # not on every platform

                    store = FileStore(self._new_folder(), clock=clock, entropy=entropy)
                case "postgresql":
                    url = stack.enter_context(self._database_in_use())
                    from leasemill.testing.uncommitted import TestPostgresStore

                    # Near the server's own time, which statements in users' transactions go by.
                    clock = ManualClock(time.time_ns() // NANOSECONDS_PER_MICROSECOND)
                    store = TestPostgresStore(url, clock=clock, entropy=entropy)
                    warn = store.warn_of_uncommitted
            stack.enter_context(store)
            yield store, clock, warn

    @contextmanager
    def _database_in_use(self) -> Iterator[str]:
        """The URL of the schema, which is empty unless another app of the test uses it."""
        database = self._database()
        if self._on_database == 0:
            database.empty()
        self._on_database += 1
        try:
            yield database.url
        finally:
            self._on_database -= 1


def _check_may_bind(app: App) -> None:
    if app.binding_refusal is not None:
        raise Invalid(app.binding_refusal)


def check_kind(kind: str) -> StoreKind:
    """The kind of store that a test names."""
    for known in STORE_KINDS:
        if kind == known:
            return known
    raise Invalid(f"there is no test store {kind!r}: write one of {', '.join(STORE_KINDS)}")


@contextmanager
def _without_url() -> Iterator[None]:
    """Keep an app that the code under test makes from the store of the person who runs the tests."""
    url = os.environ.pop(URL_VARIABLE, None)
    try:
        yield
    finally:
        if url is not None:
            os.environ[URL_VARIABLE] = url
