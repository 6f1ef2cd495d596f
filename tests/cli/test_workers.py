"""`leasemill workers`: whom an order is for, what is printed, and when it waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from leasemill.cli import main
from leasemill.errors import NotFound, Refused
from leasemill.kernel.model import Order, WorkerOrder
from leasemill.operator.workers import is_obeyed, named, state_of
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from leasemill.store.worker_records import RunningJob, WorkerRecord, encode_record

WHY = ("--reason", "a leak", "--by", "ada")


def record_of(worker: str = "web-1", **fields: Any) -> WorkerRecord:
    now = time.time()
    plain = WorkerRecord(worker, "host", 7, now - 60, now, 60.0, {"mail": 1}, 4, False, [], {})
    return replace(plain, **{"instance": f"instance of {worker}", "takes_orders": True, "version": "0.2.0"} | fields)


def heartbeat(store: Store, record: WorkerRecord) -> WorkerRecord:
    """As a worker does it: its record has the order that it was returned."""
    order = store.presence.publish(record.worker, encode_record(record))
    obeying = replace(record, order=order)
    store.presence.publish(record.worker, encode_record(obeying))
    return obeying


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    url = f"file:{tmp_path / 'jobs'}"
    monkeypatch.setenv("LEASEMILL_URL", url)
    with open_store(url) as opened:
        opened.totals()
        yield opened


def workers(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["workers", *arguments])


def test_an_order_is_printed_with_who_and_why(store: Store) -> None:
    heartbeat(store, record_of())
    assert workers("quiet", "web-1", *WHY).output == "worker web-1 was asked to be quiet by ada: a leak\n"
    again = workers("quiet", "web-1", "--reason", "another", "--by", "bob")
    assert again.output == "worker web-1 was asked to be quiet by ada: a leak\n", "the order that holds"
    found = json.loads(workers("resume", "web-1", *WHY, "--json").stdout)
    assert [(one["worker"], one["order"], one["by"], one["reason"]) for one in found] == [
        ("web-1", "resume", "ada", "a leak")
    ]
    assert workers("stop", "web-1", *WHY).output == "worker web-1 was asked to stop by ada: a leak\n"
    refused = workers("resume", "web-1", *WHY)
    assert (refused.exit_code, refused.output) == (
        1,
        "Error: worker 'web-1' was asked to stop, which cannot be undone\n",
    )


def test_a_worker_that_is_not_quiet_has_nothing_to_resume_from(store: Store) -> None:
    heartbeat(store, record_of())
    shown = workers("resume", "web-1", *WHY)
    assert (shown.exit_code, shown.output) == (0, "worker web-1 is not quiet: nothing to resume\n")
    assert json.loads(workers("resume", "web-1", *WHY, "--json").stdout) == [{"worker": "web-1", "order": None}]
    assert store.actions() == []


def test_the_list_shows_who_is_quiet_and_why(store: Store) -> None:
    heartbeat(store, record_of())
    workers("quiet", "web-1", *WHY)
    heartbeat(store, record_of())
    shown = workers()
    assert shown.output.splitlines()[1].endswith("quiet")
    assert "  web-1 was asked to be quiet by ada: a leak\n" in shown.output
    (found,) = json.loads(workers("--json").stdout)
    assert found["is_quiet"] is True
    assert (found["order"]["order"], found["order"]["by"], found["order"]["reason"]) == ("quiet", "ada", "a leak")


def test_a_reason_is_asked_for(store: Store) -> None:
    heartbeat(store, record_of())
    for order in Order:
        refused = workers(order, "web-1")
        assert refused.exit_code == 2
        assert "--reason" in refused.output


@pytest.mark.parametrize("option", [("--json",), ("--url", "file:elsewhere")])
def test_options_before_the_order_are_refused(store: Store, option: tuple[str, ...]) -> None:
    refused = workers(*option, "quiet", "web-1", *WHY)
    assert refused.exit_code == 2
    assert f"write {option[0]} after quiet" in refused.output


def test_nobody_is_ordered_whose_name_is_wrong_or_not_clear(store: Store) -> None:
    nobody = workers("stop", "web", *WHY)
    assert (nobody.exit_code, nobody.output) == (1, "Error: there is no worker 'web'. No worker is running\n")
    for number in range(1, 9):
        heartbeat(store, record_of(f"web-{number}"))
    refused = workers("stop", "web", *WHY)
    assert (refused.exit_code, refused.output) == (
        1,
        "Error: 'web' matches 8 workers; use a longer prefix: web-1, web-2, web-3, web-4, web-5 and 3 more\n",
    )
    misspelt = workers("stop", "wbe-1", *WHY)
    assert misspelt.exit_code == 1
    assert "there is no worker 'wbe-1'; did you mean" in misspelt.output
    assert store.actions() == []


def test_a_worker_is_found_by_its_id_its_beginning_or_its_supervisor() -> None:
    found = [
        (record_of("mill.1", supervisor="mill", processes=12), 1.0),
        (record_of("mill.10", supervisor="mill", processes=12), 1.0),
        (record_of("mill.2", supervisor="mill", processes=12, interval_s=2.0), 60.0),
        (record_of("web-1"), 1.0),
        (record_of("web-2", interval_s=2.0), 60.0),
    ]
    assert named(found, "mill.1") == ["mill.1"], "an id, although it begins another"
    assert named(found, "mill") == ["mill.1", "mill.10"], "those that run"
    assert named(found, "web") == ["web-1"], "the other has no heartbeat"
    assert named(found, "web-2") == ["web-2"], "named in full it is the store that refuses it"
    with pytest.raises(Refused, match="matches 2 workers"):
        named(found, "mil")
    for name in ("", "mill.3"):
        with pytest.raises(NotFound):
            named(found, name)


def test_an_order_to_a_supervisor_goes_through_all_its_processes_and_reports_those_it_failed_for(store: Store) -> None:
    for number in (1, 2, 3):
        fields = {"takes_orders": number != 2, "supervisor": "mill", "processes": 3}
        heartbeat(store, record_of(f"mill.{number}", **fields))
    shown = workers("quiet", "mill", *WHY)
    assert shown.exit_code == 1
    assert [line.split(" by ")[0] for line in shown.stdout.splitlines()] == [
        "worker mill.1 was asked to be quiet",
        "worker mill.3 was asked to be quiet",
    ]
    assert "Error: worker 'mill.2' runs Leasemill 0.2.0, which takes no orders" in shown.stderr
    assert "1 worker of 3 not ordered" in shown.stderr
    as_json = workers("quiet", "mill", *WHY, "--json")
    assert as_json.exit_code == 1
    found = {one["worker"]: one for one in json.loads(as_json.stdout)}
    assert [found[f"mill.{number}"].get("order") for number in (1, 2, 3)] == ["quiet", None, "quiet"]
    assert "takes no orders" in found["mill.2"]["error"]


RUNNING = [RunningJob("job", "send", 1, 1.0)]


@pytest.mark.parametrize(
    ("order", "fields", "expected"),
    [
        (Order.QUIET, {}, False),
        (Order.QUIET, {"quiet": True, "running": RUNNING}, False),
        (Order.QUIET, {"quiet": True, "stuck": RUNNING}, False),
        (Order.QUIET, {"quiet": True}, True),
        (Order.RESUME, {"quiet": True}, False),
        (Order.RESUME, {}, True),
        (Order.STOP, {"is_stopping": True}, False),
    ],
)
def test_when_an_order_is_obeyed(order: Order, fields: dict[str, Any], expected: bool) -> None:
    given = dict(fields)
    is_quiet = given.pop("quiet", False)
    record = record_of(**given)
    if is_quiet:
        record = replace(record, order=_quiet(record.instance))
    assert is_obeyed(order, [(record, 1.0)], "web-1", record.instance) is expected


def _quiet(instance: str) -> WorkerOrder:
    return WorkerOrder(instance, Order.QUIET, 1, "ada", "a leak")


def test_a_worker_that_is_gone_has_stopped_and_will_not_be_quiet() -> None:
    replaced = [(record_of(instance="the next one"), 1.0)]
    for found in ([], replaced):
        assert is_obeyed(Order.STOP, found, "web-1", "instance of web-1")
        with pytest.raises(NotFound, match="has stopped"):
            is_obeyed(Order.QUIET, found, "web-1", "instance of web-1")
    stale = [(record_of(interval_s=2.0), 60.0)]
    with pytest.raises(NotFound, match="no heartbeat for 60 s"):
        is_obeyed(Order.STOP, stale, "web-1", "instance of web-1")


def test_the_state_of_a_worker_in_a_word() -> None:
    quiet = replace(record_of(), order=_quiet("instance of web-1"))
    assert state_of(record_of(), 1.0) == "running"
    assert state_of(quiet, 1.0) == "quiet"
    assert state_of(replace(quiet, is_stopping=True), 1.0) == "stopping"
    assert state_of(replace(quiet, interval_s=2.0), 60.0) == "no heartbeat"


def test_a_command_that_waits_says_what_for_and_returns_when_it_is_done(store: Store) -> None:
    running = record_of(running=RUNNING)
    heartbeat(store, running)
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(workers("quiet", "web-1", *WHY, "--wait")))
    thread.start()
    await_that(lambda: store.order(running.instance) is not None)
    heartbeat(store, running)
    assert thread.is_alive(), "its job runs"
    heartbeat(store, replace(running, running=[]))
    thread.join(60)
    (result,) = results
    assert result.exit_code == 0
    assert "waiting for web-1, which runs 1 job\n" in result.stderr
    assert result.stdout == "worker web-1 is quiet and runs nothing\n"


def await_that(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
