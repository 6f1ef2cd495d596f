"""Orders to workers from the Workers page: asked for, done, recorded and undone, on every store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from leasemill.dashboard import ViewerRole
from leasemill.kernel.model import Order, Verb
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, encode_record
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.markup import parsed
from tests.dashboard.test_control_actions import latest


def heartbeat(store: Store, worker: str = "web-1", **fields: object) -> None:
    """As a worker does it: its record has the order that it was returned."""
    record = WorkerRecord(worker, "host", 1, 0.0, 0.0, 60.0, {"mail": 1}, 4, False, [], {})
    record = replace(record, **{"instance": f"instance of {worker}", "takes_orders": True, "version": "0.2.0"} | fields)
    order = store.presence.publish(worker, encode_record(record))
    store.presence.publish(worker, encode_record(replace(record, order=order)))


def asked(store: Store, worker: str = "web-1") -> Order | None:
    order = store.order(f"instance of {worker}")
    return None if order is None else order.order


def test_a_worker_is_made_quiet_and_resumed(desk: Desk, store: Store) -> None:
    heartbeat(store)
    assert "Quiet" in desk.get("/workers").text
    desk.act("/acts/quiet-worker?worker=web-1")
    assert asked(store) is Order.QUIET
    assert latest(store) == (Verb.QUIET_WORKER, "ann", "because")
    heartbeat(store)
    page = desk.get("/workers?worker=web-1").text
    assert "Asked to be quiet by ann" in page
    assert "because" in page
    assert "1 quiet" in desk.get("/workers").text
    assert "ann asked it to be quiet: because" in desk.get("/acts/resume-worker?worker=web-1").text
    desk.act("/acts/resume-worker?worker=web-1")
    assert asked(store) is Order.RESUME
    assert latest(store) == (Verb.RESUME_WORKER, "ann", "because")
    heartbeat(store)
    assert "Asked to be quiet" not in desk.get("/workers?worker=web-1").text
    audit = desk.get("/audit").text
    assert "quiet worker" in audit
    assert "resume worker" in audit


def test_a_worker_is_stopped_for_good(desk: Desk, store: Store) -> None:
    heartbeat(store)
    assert "cannot be taken back" in desk.get("/acts/stop-worker?worker=web-1").text
    desk.act("/acts/stop-worker?worker=web-1")
    assert asked(store) is Order.STOP
    assert latest(store) == (Verb.STOP_WORKER, "ann", "because")
    assert "cannot be undone" in desk.act("/acts/resume-worker?worker=web-1", 400).text
    heartbeat(store, is_stopping=True)
    page = desk.get("/workers?worker=web-1").text
    assert "Asked to stop by ann" in page
    links = [one.attributes["href"] for one in desk.get("/workers?worker=web-1").find("a")]
    assert not any("/acts/" in link for link in links), "nothing is left to be asked of it"


def test_one_process_of_a_supervisor_is_asked_or_all_of_them(desk: Desk, store: Store) -> None:
    for number in (1, 2):
        heartbeat(store, f"mill.{number}", supervisor="mill", processes=2)
    heartbeat(store, "other")
    assert "All 2 processes of mill" in desk.get("/acts/quiet-worker?worker=mill.1").text
    desk.act("/acts/quiet-worker?worker=mill.1")
    assert (asked(store, "mill.1"), asked(store, "mill.2")) == (Order.QUIET, None)
    desk.act("/acts/stop-worker?worker=mill.1", all="yes")
    assert (asked(store, "mill.1"), asked(store, "mill.2")) == (Order.STOP, Order.STOP)
    assert asked(store, "other") is None


@pytest.mark.parametrize("order", Order)
def test_an_order_is_not_for_the_process_that_was_started_after_the_question(
    desk: Desk, store: Store, order: Order
) -> None:
    heartbeat(store)
    path = f"/acts/{order}-worker?worker=web-1"
    question = desk.get(path)
    heartbeat(store, instance="its successor")
    refused = desk.answer(path, question, 400)
    assert "was started again since you were asked" in refused.text
    assert "was started again" in desk.answer(path, refused, 400).text, "the form still names the one that was meant"
    assert "does not name the process" in desk.act(path, 400, instances="").text
    assert store.actions() == []


def test_an_order_to_all_processes_goes_through_all_and_names_those_that_were_not_asked(
    desk: Desk, store: Store
) -> None:
    for number in (1, 2, 3):
        heartbeat(store, f"mill.{number}", supervisor="mill", processes=3)
    path = "/acts/stop-worker?worker=mill.1"
    question = desk.get(path)
    heartbeat(store, "mill.2", supervisor="mill", processes=3, instance="its successor")
    desk.answer(path, question, all="yes")
    assert [asked(store, f"mill.{number}") for number in (1, 2, 3)] == [Order.STOP, None, Order.STOP]
    assert store.order("its successor") is None
    notice = parsed(desk.client.get("/workers").text).find("p", class_="notice")[0].text
    assert notice.startswith("2 workers were asked to stop. 1 worker not: worker 'mill.2' runs in another process")


@pytest.mark.parametrize("order", Order)
def test_a_worker_that_is_gone_or_takes_no_orders_is_not_asked(desk: Desk, store: Store, order: Order) -> None:
    path = f"/acts/{order}-worker?worker=web-1"
    assert "there is no worker" in desk.get(path, 404).text
    heartbeat(store, interval_s=-1.0)
    assert "has sent no heartbeat" in desk.get(path, 404).text
    heartbeat(store, takes_orders=False)
    page = desk.get(path)
    assert "takes no orders" in page.text
    assert page.find("input", name="reason") == []
    assert store.actions() == []


def test_somebody_who_may_only_look_is_shown_no_act_and_may_not_do_one(memory: Store) -> None:
    heartbeat(memory)
    desk = desk_on(memory, ViewerRole.READ)
    assert "Quiet" not in desk.get("/workers").text
    for order in Order:
        desk.get(f"/acts/{order}-worker?worker=web-1", 403)
    desk.dashboard.close()
