"""Apps and workers that reach their store through a server, with keys of the roles the guide gives them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from leasemill import App, Context, JobState, Limit, Worker
from leasemill.errors import Refused
from leasemill.server.security import secured
from leasemill.store.http.store import HttpStore
from leasemill.store.keys import new_key
from leasemill.store.memory import MemoryStore
from leasemill.store.records import records
from leasemill.wire.routes import Role
from tests.lab.http_server import ServerThread


class Keyed:
    """A server that needs keys, over a store of its own."""

    def __init__(self, server: ServerThread, behind: MemoryStore) -> None:
        self._server = server
        self.behind = behind
        self.ids: dict[str, str] = {}
        self.urls: dict[str, str] = {}

    def add(self, name: str, *roles: Role, queues: tuple[str, ...] = ("*",)) -> None:
        key, text = new_key(name=name, roles=roles, now=1, by="ada", queues=queues)
        self.behind.keys.add(key)
        self.ids[name] = key.id
        self.urls[name] = self._server.url.replace("//", f"//{text}@")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture
def keyed(server: ServerThread) -> Iterator[Keyed]:
    with MemoryStore() as behind:
        keyed = Keyed(server, behind)
        keyed.add("web", Role.PRODUCER, queues=("mail",))
        keyed.add("worker", Role.WORKER, Role.PRODUCER, queues=("mail", "later.*"))
        keyed.add("ops", Role.OPERATOR)
        with _serving(server, behind):
            yield keyed


@contextmanager
def _serving(server: ServerThread, behind: MemoryStore) -> Iterator[None]:
    security = secured(behind, "127.0.0.1", requires_keys=True)
    with server.serving(behind, security.gate):
        yield


def app_of(url: str) -> App:
    app = App(url)

    @app.job(queue="mail", limit=Limit(2, name="post"))
    async def send(ctx: Context, to: str) -> str:
        async with ctx.commit() as tx:
            tx.enqueue(file, to)
            tx.set_result(to.upper())
        return to  # dropped: the commit has a result

    @app.job(queue="later.file")
    def file(to: str) -> None: ...

    @app.cron(timedelta(hours=1))
    @app.job(queue="mail")
    def tidy() -> None: ...

    return app


def test_a_worker_runs_jobs_with_a_key_for_its_queues_and_a_producer_gets_the_result(keyed: Keyed) -> None:
    with app_of(keyed.urls["web"]) as web, app_of(keyed.urls["worker"]) as app:
        handle = web.enqueue("send", to="ann")
        Worker(app, drain=True, handle_signals=False, worker_id="w").run_sync()
        assert handle.status() is JobState.SUCCEEDED
        assert handle.result(10) == "ANN"
        assert {job.spec.queue for job in keyed.behind.jobs().jobs} == {"mail", "later.file"}
        job = keyed.behind.job(handle.id)
        assert job is not None
        assert [run.worker for run in job.executions] == [f"w@{keyed.ids['worker']}"]


def test_a_worker_of_queues_that_its_key_is_not_for_is_refused_with_what_is_wrong(keyed: Keyed) -> None:
    with app_of(keyed.urls["worker"]) as app:
        with pytest.raises(Refused, match="queue 'other' is outside of key 'worker', which is for mail, later"):
            Worker(app, queues=["mail", "other"], drain=True, handle_signals=False).run_sync()
        assert records(keyed.behind.presence) == []


def test_an_operator_acts_through_the_server_under_its_key_s_name(keyed: Keyed) -> None:
    with app_of(keyed.urls["web"]) as web:
        handle = web.enqueue("send", to="ann")
        with pytest.raises(Refused, match="cancel needs a key that may operate"):
            web.store.cancel([handle.id], by="me", reason="because")
    with HttpStore(keyed.urls["ops"]) as store:
        store.cancel([handle.id], by="me", reason="because")
    assert keyed.behind.actions(limit=1)[0].by == "ops"
