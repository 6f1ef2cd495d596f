"""`app`: a `leasemill.App` whose store the Django settings name."""

from __future__ import annotations

from typing import ClassVar, Final

from leasemill.api.app import App
from leasemill.contrib.django.configuration import WrongSetting, check_database, configuration, is_same_database
from leasemill.contrib.django.hygiene import connections_kept
from leasemill.store.base import Store
from leasemill.store.factory import open_store


class DjangoApp(App):
    """The jobs of a Django project. Use the one there is: `from leasemill.contrib.django import app`."""

    binding_refusal: ClassVar[str | None] = (
        "with the fixture `leasemill` the handlers of a Django project would run outside the test's transaction and "
        "see none of its rows: use the fixture `leasemill_django`, or JobsMixin in a TestCase"
    )

    def __init__(self) -> None:
        self._url: str | None = None
        super().__init__("")
        self._url = None  # the settings', until another is set
        self.task_queues: set[str] = set()
        """Queues of task backends: tasks can be sent to any of them."""
        self.around(connections_kept)

    @property
    def url(self) -> str:
        """The store's: of the settings, which are read at each use, unless another was set."""
        return configuration().url_in_use if self._url is None else self._url

    @url.setter
    def url(self, url: str) -> None:
        self._url = url

    def follow_settings(self) -> None:
        """Use the store of the settings again, after another URL was set."""
        if self._url is not None:
            self.close()
            self._url = None

    @property
    def queues(self) -> frozenset[str]:
        return super().queues | self.task_queues

    def _open(self) -> Store:
        chosen = configuration()
        if chosen.database is None:
            return open_store(self.url)
        check_database(chosen.database)
        if self._url is not None and not is_same_database(chosen.database, self._url):
            return open_store(self._url)
        if not self.url.startswith(("postgresql:", "postgres:")):
            raise WrongSetting(
                'LEASEMILL has a "DATABASE" beside a "URL" that is not PostgreSQL: leave one of them out'
            )
        from leasemill.contrib.django.store import DjangoStore

        return DjangoStore(self.url, chosen.database)


app: Final = DjangoApp()
"""The jobs of this project."""
