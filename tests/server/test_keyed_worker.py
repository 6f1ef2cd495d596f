"""Apps and workers that reach their store through a server, with keys of the roles the guide gives them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from msgspec.structs import replace

from leasemill import App, Context, JobState, Limit, Worker
from leasemill.cli.run_worker import reach_store
from leasemill.cli.stats import gathered
from leasemill.errors import NotFound, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, Order, Verb
from leasemill.server.security import secured
from leasemill.store.access_keys import new_key
from leasemill.store.http.store import HttpStore
from leasemill.store.memory import MemoryStore
from leasemill.store.worker_records import WorkerRecord, encode_record, records
from leasemill.testing.rules import rule
from leasemill.wire.routes import Role
from leasemill.worker.prometheus.catalogue import GROUPS_OPEN, QUEUE_JOBS, SCHEDULE_LATE
from leasemill.worker.prometheus.queues import counted
from tests.lab.http_server import ServerThread
from tests.lab.processes import wait_until


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
        keyed.add("eyes", Role.READER)
        keyed.add("elsewhere", Role.OPERATOR, queues=("other",))
        keyed.add("both", Role.WORKER, queues=("a.*", "b.*"))
        keyed.add("some", Role.WORKER, Role.OPERATOR, queues=("a.*",))
        keyed.add("other", Role.WORKER)
        with _serving(server, behind):
            yield keyed


@contextmanager
def _serving(server: ServerThread, behind: MemoryStore) -> Iterator[None]:
    security = secured(behind, "127.0.0.1", requires_keys=True)
    with server.serving(behind, security.authorizer):
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


@rule("O12", "O13")
def test_an_operator_s_key_orders_the_worker_of_another_key(keyed: Keyed) -> None:
    with app_of(keyed.urls["worker"]) as app, HttpStore(keyed.urls["ops"]) as ops:
        worker = Worker(app, handle_signals=False, worker_id="w")
        thread = threading.Thread(target=worker.run_sync)
        thread.start()
        try:
            wait_until(lambda: bool(records(ops.presence)), "its first heartbeat")
            ((record, _),) = records(ops.presence)
            assert record.worker == f"w@{keyed.ids['worker']}"
            ops.order_worker(record.worker, Order.QUIET, by="me", reason="because")
            wait_until(lambda: records(ops.presence)[0][0].is_quiet, "it to be quiet")
            ops.order_worker(record.worker, Order.STOP, by="me", reason="because")
            thread.join(60)
            assert not thread.is_alive()
        finally:
            worker.stop()
            thread.join()
        acts = [one for one in keyed.behind.actions() if one.verb in (Verb.QUIET_WORKER, Verb.STOP_WORKER)]
        assert [(one.verb, one.target, one.by) for one in acts] == [
            (Verb.STOP_WORKER, record.worker, "ops"),
            (Verb.QUIET_WORKER, record.worker, "ops"),
        ]


@rule("O12")
def test_an_order_is_refused_to_keys_that_may_not_and_for_workers_that_are_not_there(keyed: Keyed) -> None:
    record = WorkerRecord("w", "host", 7, 0.0, 0.0, 60.0, {"mail": 1}, 4, False, [], {})
    record = replace(record, instance="first", takes_orders=True)

    def order(store: HttpStore, worker: str, instance: str) -> None:
        store.run(c.OrderWorker(worker, instance, Order.STOP, "me", "because"))

    with HttpStore(keyed.urls["worker"]) as own, HttpStore(keyed.urls["elsewhere"]) as elsewhere:
        own.presence.publish("w", encode_record(record))
        name = f"w@{keyed.ids['worker']}"
        with pytest.raises(Refused, match="order_worker needs a key that may operate"):
            own.order_worker("w", Order.STOP, by="me", reason="because")
        with pytest.raises(Refused, match="is outside of key 'elsewhere'"):
            order(elsewhere, name, "first")
    with HttpStore(keyed.urls["ops"]) as ops:
        with pytest.raises(NotFound, match="runs in another process than 'second'"):
            order(ops, name, "second")
        with pytest.raises(NotFound, match="there is no worker 'nobody'"):
            order(ops, "nobody", "first")
    assert keyed.behind.order("first") is None
    assert keyed.behind.actions() == []


def published(*queues: str, instance: str) -> bytes:
    record = WorkerRecord("w", "host", 7, 0.0, 0.0, 60.0, dict.fromkeys(queues, 1), 4, False, [], {})
    return encode_record(replace(record, instance=instance, takes_orders=True))


FAKES = {
    "in the key's queues": published("a.x", instance="first"),
    "without queues": published(instance="first"),
    "that cannot be read": b'{"instance":"first"}',
}


@rule("O12")
@pytest.mark.parametrize("fake", FAKES.values(), ids=FAKES)
def test_a_record_that_names_the_instance_of_another_key_s_worker_gives_no_right_to_order_it(
    keyed: Keyed, fake: bytes
) -> None:
    with HttpStore(keyed.urls["both"]) as both, HttpStore(keyed.urls["some"]) as some:
        both.presence.publish("w", published("a.x", "b.y", instance="first"))
        some.presence.publish("w", fake)
        with pytest.raises(Refused, match="is outside of key 'some'"):
            some.run(c.OrderWorker("w", "first", Order.STOP, "me", "because"))
        with pytest.raises(Refused, match="is outside of key 'some'"):
            some.presence.remove(f"w@{keyed.ids['both']}")
        assert some.presence.remove("w")
    assert keyed.behind.order("first") is None
    assert [one.worker_id for one in keyed.behind.presence.records()] == [f"w@{keyed.ids['both']}"]


@rule("O12")
@pytest.mark.parametrize("content", [published(instance="first"), b'{"instance":"first"}'], ids=["empty", "unreadable"])
def test_a_key_for_some_queues_does_not_order_a_worker_whose_queues_nobody_knows(keyed: Keyed, content: bytes) -> None:
    keyed.behind.presence.publish("w", content)
    with HttpStore(keyed.urls["some"]) as some, pytest.raises(Refused, match="is outside of key 'some'"):
        some.run(c.OrderWorker("w", "first", Order.STOP, "me", "because"))


@rule("O13")
def test_an_order_is_not_returned_to_a_client_that_names_the_instance_of_another_key_s_worker(keyed: Keyed) -> None:
    record = published("mail", instance="first")
    with HttpStore(keyed.urls["worker"]) as own, HttpStore(keyed.urls["other"]) as other:
        own.presence.publish("w", record)
        with HttpStore(keyed.urls["ops"]) as ops:
            ops.order_worker(f"w@{keyed.ids['worker']}", Order.QUIET, by="me", reason="because")
        assert own.presence.publish("w", record) is not None
        assert other.presence.publish("w", record) is None
        assert other.presence.remove("w")
        assert own.presence.publish("w", record) is not None


def test_an_operator_acts_through_the_server_under_its_key_s_name(keyed: Keyed) -> None:
    with app_of(keyed.urls["web"]) as web:
        handle = web.enqueue("send", to="ann")
        with pytest.raises(Refused, match="cancel needs a key that may operate"):
            web.store.cancel([handle.id], by="me", reason="because")
    with HttpStore(keyed.urls["ops"]) as store:
        store.cancel([handle.id], by="me", reason="because")
    assert keyed.behind.actions(limit=1)[0].by == "ops"


def test_a_worker_whose_key_may_not_read_groups_counts_everything_else(keyed: Keyed) -> None:
    keyed.behind.enqueue([JobSpec("one", "mail", "send")])
    with HttpStore(keyed.urls["worker"]) as store:
        found = counted(store).values
    assert found[QUEUE_JOBS.name]["mail", "ready"] == 1
    assert found[SCHEDULE_LATE.name] == {(): 0}
    assert GROUPS_OPEN.name not in found


@pytest.mark.parametrize("name", ["eyes", "ops"])
def test_stats_need_no_more_than_a_key_that_may_read(keyed: Keyed, name: str) -> None:
    keyed.behind.enqueue([JobSpec("one", "mail", "send")])
    with HttpStore(keyed.urls[name]) as store:
        assert gathered(store)["queues"]["mail"]["due_in_us"] == 0


def test_a_worker_that_starts_reads_only_the_queues_it_serves(keyed: Keyed) -> None:
    with App(keyed.urls["worker"]) as app:
        app.job(queue="mail", name="send")(print_nothing)
        app.job(queue="other", name="count")(print_nothing)
        reach_store(app, ["mail"])
        with pytest.raises(Refused, match="queue 'other' is outside of key 'worker'"):
            reach_store(app, [])


def print_nothing() -> None: ...
