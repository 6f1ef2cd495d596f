"""A store of each kind with jobs in every state, and a client that looks at it through the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from leasemill.dashboard import Dashboard, Principal, ViewerRole
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.dashboard.browser.serving import launched
from tests.dashboard.client import Client
from tests.dashboard.filling import Filled, fill
from tests.dashboard.markup import Markup, parsed
from tests.lab.http_server import ServerThread
from tests.store.postgres.conftest import admin, postgres_url, schema, server_url

__all__ = ["admin", "postgres_url", "schema", "server_url"]


@pytest.fixture(scope="session")
def http_server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, launched(playwright) as opened:
        yield opened


@pytest.fixture(params=["memory", "file", "postgresql", "http"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "http":
        server: ServerThread = request.getfixturevalue("http_server")
        with open_store("memory:") as behind, server.serving(behind), open_store(server.url) as opened:
            yield opened
        return
    url = {"memory": "memory:", "file": f"file:{tmp_path / 'jobs'}"}.get(request.param)
    with open_store(url or request.getfixturevalue("postgres_url")) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[Store]:
    with open_store("memory:") as opened:
        yield opened


@dataclass
class Desk:
    """Somebody at the dashboard."""

    dashboard: Dashboard
    client: Client

    def get(self, path: str, status: int = 200, **headers: str) -> Markup:
        """A page, with fresh counts."""
        self.dashboard.open().sample()
        response = self.client.get(path, headers=headers)
        assert response.status_code == status, response.text
        return parsed(response.text)

    def act(self, path: str, status: int = 303, **fields: str) -> Markup:
        """Ask for an act, and answer its form."""
        return self.answer(path, self.get(path), status, **fields)

    def answer(self, path: str, question: Markup, status: int = 303, **fields: str) -> Markup:
        """Answer the form of an act, with what it holds."""
        hidden = {one.attributes["name"]: one.attributes["value"] for one in question.find("input", type="hidden")}
        form = {**hidden, "reason": "because", **fields}
        response = self.client.post(path, data=form, headers={"Origin": "http://testserver"}, follow_redirects=False)
        assert response.status_code == status, response.text
        return parsed(response.text)


def desk_on(store: Store, role: ViewerRole = ViewerRole.OPERATE) -> Desk:
    dashboard = Dashboard(store, authorize=lambda _request: Principal("ann", role))
    return Desk(dashboard, Client(dashboard))


@pytest.fixture
def desk(store: Store) -> Iterator[Desk]:
    made = desk_on(store)
    yield made
    made.dashboard.close()


@pytest.fixture
def filled(store: Store) -> Filled:
    return fill(store)
