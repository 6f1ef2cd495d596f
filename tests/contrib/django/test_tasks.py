"""`LeasemillBackend` keeps the contract of `django.tasks`: Django's own cases, on this backend."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import override_settings
from django.utils import timezone
from django.utils.module_loading import import_string

from leasemill.contrib.django import LeasemillBackend, LeasemillTask, app
from leasemill.contrib.django.task_backend.names import (
    TASKS,
    InvalidTask,
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from leasemill.contrib.django.task_backend.task import job_priority
from leasemill.kernel import commands as c
from leasemill.testing.drain import drain, in_memory
from tests.contrib.django.shop import tasks as shop
from tests.contrib.django.shop.models import Order

library = import_module(TASKS)
backends: Any = library.task_backends
task: Any = library.task
TaskResultMismatch: Any = import_module(f"{TASKS}.exceptions").TaskResultMismatch
PATH = "leasemill.contrib.django.LeasemillBackend"


@pytest.fixture(autouse=True, params=["memory", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "memory":
        with in_memory(app) as clock:
            request.node.clock = clock
            yield
    else:
        request.getfixturevalue("empty_store")
        yield
        connections.close_all()


def finished(result: Any) -> Any:
    """After a worker has run what is due."""
    drain(app)
    result.refresh()
    return result


# Declaring ------------------------------------------------------------------------------------------------------


def test_the_backend_is_the_one_of_the_settings() -> None:
    backend = backends["default"]
    assert isinstance(backend, LeasemillBackend)
    assert (backend.alias, backend.options) == ("default", {})
    assert list(backend.check()) == []
    assert {"default", "mail"} <= app.queues


def test_decorated_functions_are_tasks_and_have_a_name_and_a_path() -> None:
    for one in (shop.nothing, shop.nothing_async, shop.mail):
        assert isinstance(one, Task)
        assert isinstance(one, LeasemillTask)
        assert import_string(one.module_path) is one
        assert one.module_path in app.jobs
    assert (shop.mail.name, shop.mail.module_path) == ("mail", "tests.contrib.django.shop.tasks.mail")


def test_using_makes_another_task_and_leaves_the_first_alone() -> None:
    now = timezone.now()
    changed = shop.nothing.using(priority=7, queue_name="mail", run_after=now)
    assert (changed.priority, changed.queue_name, changed.run_after) == (7, "mail", now)
    assert changed.using(priority=9).run_after == now
    assert (shop.nothing.priority, shop.nothing.queue_name, shop.nothing.run_after) == (0, "default", None)
    assert shop.nothing.using() == shop.nothing
    assert shop.nothing.using() is not shop.nothing


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"priority": -101}, "priority must be a whole number between -100 and 100."),
        ({"priority": 101}, "priority must be a whole number between -100 and 100."),
        ({"priority": 3.1}, "priority must be a whole number between -100 and 100."),
        ({"queue_name": "queue-2"}, "Queue 'queue-2' is not valid for backend."),
        ({"run_after": datetime(2030, 1, 1)}, "run_after must be an aware datetime."),  # noqa: DTZ001
    ],
)
def test_what_django_refuses_is_refused_where_it_is_written(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidTask, match=sentence.replace("(", r"\(")):
        shop.nothing.using(**change)


def test_only_functions_of_modules_are_tasks() -> None:
    def inner() -> None: ...

    for function in (any, inner):
        with pytest.raises(InvalidTask, match="must be defined at a module level"):
            task()(function)
    with pytest.raises(InvalidTask, match="does not have a first argument of 'context'"):
        task(takes_context=True)(shop.answer.func)
    with pytest.raises(InvalidTask, match=r"lane of .*_other: 'customer' is not one of its parameters"):
        task(lane="customer")(_other)
    with pytest.raises(TypeError):
        task(unknown=1)(shop.answer.func)


def _other() -> None: ...


def test_a_task_is_checked_again_when_it_is_enqueued() -> None:
    mail = shop.nothing.using(queue_name="mail")
    with override_settings(TASKS={"default": {"BACKEND": PATH, "QUEUES": ["queue-1"]}}):
        with pytest.raises(InvalidTask, match="Queue 'mail' is not valid for backend"):
            mail.enqueue()
        with pytest.raises(InvalidTask, match="Queue 'mail' is not valid for backend"):
            async_to_sync(mail.aenqueue)()


def test_without_queues_every_queue_is_valid_but_one_that_is_no_name() -> None:
    with override_settings(TASKS={"default": {"BACKEND": PATH, "QUEUES": []}}):
        assert shop.nothing.using(queue_name="other").enqueue().task.queue_name == "other"
        with pytest.raises(InvalidTask, match="queue"):
            shop.nothing.using(queue_name="a b")


def test_options_are_checked() -> None:
    def found(**options: Any) -> list[str]:
        with override_settings(TASKS={"default": {"BACKEND": PATH, "OPTIONS": options}}):
            return [f"{one.id}: {one.msg}" for one in backends["default"].check()]

    assert found(retry=3, lease=60) == []
    assert found(url="postgresql://")[0].startswith("leasemill.E004: TASKS['default'] has no option 'url'")
    assert found(retry=-1)[0].startswith("leasemill.E005: ")


# Enqueueing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("one", [shop.nothing, shop.nothing_async], ids=["sync", "async"])
def test_a_new_result_is_ready(one: Any, is_async: bool) -> None:
    result = async_to_sync(one.aenqueue)(1, two=(3,)) if is_async else one.enqueue(1, two=(3,))
    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.task, result.args, result.kwargs) == (one, [1], {"two": [3]})
    assert (result.attempts, result.errors, result.backend) == (0, [], "default")
    assert len(result.id) < 64
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018  (it raises)


@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_not_json_is_refused_when_it_is_enqueued(is_async: bool) -> None:
    enqueue = async_to_sync(shop.nothing.aenqueue) if is_async else shop.nothing.enqueue
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(timezone.now())
    with pytest.raises(TypeError, match="Unsupported type"):
        enqueue(key=[object()])


def test_enqueue_logs_one_line_and_sends_one_signal(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        seen.append((sender, task_result.id))

    task_enqueued.connect(receive)
    try:
        with caplog.at_level(logging.DEBUG, TASKS.replace("_", ".")), caplog.at_level(logging.DEBUG, "django_tasks"):
            result = shop.nothing.enqueue()
    finally:
        task_enqueued.disconnect(receive)
    assert seen == [(LeasemillBackend, result.id)]
    lines = [one.getMessage() for one in caplog.records if "enqueued" in one.getMessage()]
    assert len(lines) == 1
    assert result.id in lines[0]


def test_priorities_keep_their_order_and_the_default_is_in_the_middle() -> None:
    levels = [job_priority(one) for one in range(-100, 101)]
    assert levels == sorted(levels)
    assert set(levels) == set(range(10))
    assert [job_priority(one) for one in (-100, -1, 0, 1, 100)] == [0, 3, 4, 5, 9]


def test_a_higher_priority_runs_first() -> None:
    low = shop.nothing.using(priority=-50).enqueue()
    high = shop.nothing.using(priority=50).enqueue()
    assert [lease.job.id for lease in app.store.claim("w", ["default"], 2)] == [high.id, low.id]


def test_a_task_waits_for_its_time() -> None:
    later = timezone.now() + timedelta(hours=1)
    result = shop.nothing.using(run_after=later).enqueue()
    assert finished(result).status == TaskResultStatus.READY
    assert abs(shop.nothing.get_result(result.id).task.run_after - later) < timedelta(milliseconds=1)


# Results --------------------------------------------------------------------------------------------------------


def test_a_result_can_be_read_again() -> None:
    result = shop.mail.using(priority=33).enqueue("ann", lines=["hello"])
    again = shop.mail.get_result(result.id)
    assert async_to_sync(shop.mail.aget_result)(result.id) == again
    assert again.task == result.task  # also its own priority, which has fewer levels in the store
    assert again == result


def test_a_result_that_is_not_there_does_not_exist() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        shop.nothing.get_result("123")
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(shop.nothing.aget_result)("123")
    plain = app.jobs["notify"].enqueue(order_id=1)
    with pytest.raises(TaskResultDoesNotExist):
        backends["default"].get_result(plain.id)


def test_the_result_of_another_task_does_not_match() -> None:
    result = shop.answer.enqueue()
    with pytest.raises(TaskResultMismatch, match="Task does not match"):
        shop.nothing.get_result(result.id)


def test_a_purged_result_does_not_exist() -> None:
    result = finished(shop.answer.enqueue())
    app.store.purge(c.JobFilter(kind=shop.answer.module_path), by="test", reason="old")
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_tasks_and_results_can_be_pickled() -> None:
    result = shop.answer.enqueue()
    if TASKS == "django.tasks" and hasattr(Task, "_reconstruct"):
        assert pickle.loads(pickle.dumps(shop.answer)) == shop.answer
        assert pickle.loads(pickle.dumps(result)) == result
    assert backends["default"].get_result(result.id).task == shop.answer


# Running --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [shop.nothing, shop.nothing_async], ids=["sync", "async"])
def test_a_task_that_ran_is_successful(one: Any) -> None:
    result = finished(one.enqueue(1, two=3))
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.is_finished
    assert result.return_value is None
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])


def test_the_return_value_is_kept() -> None:
    assert finished(shop.answer.enqueue()).return_value == 42
    assert finished(shop.mail.enqueue("ann", lines=["a"])).return_value == {"to": "ann", "lines": ["a"]}


@pytest.mark.parametrize(
    ("kind", "expected", "last_line"),
    [
        ("value", ValueError, "ValueError: This task failed\n"),
        ("exit", SystemExit, "SystemExit: This task left\n"),
        ("own", shop.ShopError, "tests.contrib.django.shop.tasks.ShopError: closed\n"),
    ],
)
def test_an_error_is_kept_with_its_class_and_its_traceback(kind: str, expected: type, last_line: str) -> None:
    result = finished(shop.raises.enqueue(kind))
    assert result.status == TaskResultStatus.FAILED
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018  (it raises)
    (error,) = result.errors
    assert error.exception_class is expected
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert error.traceback.endswith(last_line)
    assert "in raises" in error.traceback
    assert result.enqueued_at <= result.started_at <= result.finished_at


def test_an_error_that_is_not_text_is_kept_as_its_source_line() -> None:
    (error,) = finished(shop.raises.enqueue("nested")).errors
    assert error.exception_class is ValueError
    assert 'ValueError(ValueError("This task failed"))' in error.traceback


def test_a_return_value_that_is_not_json_fails_the_task_and_is_not_tried_again() -> None:
    result = finished(shop.returns_a_function.enqueue())
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[0].exception_class is TypeError
    assert "Unsupported type" in result.errors[0].traceback


def test_a_task_gets_its_context() -> None:
    result = finished(shop.own_id.enqueue())
    assert result.return_value == [result.id, 1, result.id]


def test_a_task_that_is_retried_is_ready_again_and_its_attempts_are_counted(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.node, "clock"):
        pytest.skip("the clock of a server cannot be moved")
    result = shop.second_time.enqueue()
    drain(app)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
    drain(app, request.node.clock)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)
    assert result.return_value == [2, 1, 2]
    assert result.errors[0].exception_class is shop.ShopError
    assert result.started_at < result.last_attempted_at


def test_the_signals_of_a_run_are_sent_and_its_end_only_once(request: pytest.FixtureRequest) -> None:
    seen: list[tuple[str, str]] = []

    def started(sender: Any, task_result: Any, **kwargs: Any) -> None:
        seen.append(("started", str(task_result.status)))

    def ended(sender: Any, task_result: Any, **kwargs: Any) -> None:
        seen.append(("finished", str(task_result.status)))

    task_started.connect(started)
    task_finished.connect(ended)
    try:
        shop.answer.enqueue()
        drain(app)
        shop.nothing_async.enqueue()
        drain(app)
        assert seen == [("started", "RUNNING"), ("finished", "SUCCESSFUL")] * 2
        seen.clear()
        shop.raises.enqueue("value")
        drain(app)
        assert seen == [("started", "RUNNING"), ("finished", "FAILED")]
        seen.clear()
        if hasattr(request.node, "clock"):
            shop.flaky.enqueue()
            drain(app, request.node.clock)
            assert seen == [("started", "RUNNING")] * 3 + [("finished", "FAILED")]
    finally:
        task_started.disconnect(started)
        task_finished.disconnect(ended)


def test_lane_and_unique_are_options_of_a_task() -> None:
    first = shop.bill.enqueue("ann", cents=5)
    assert shop.bill.enqueue(customer="ann", cents=5).id == first.id
    assert shop.bill.enqueue("bob", 5).id != first.id
    job = app.store.job(first.id)
    assert job is not None
    assert job.spec.lane == "ann"


# In transactions ------------------------------------------------------------------------------------------------


def test_a_task_joins_the_transaction_and_its_result_is_there_meanwhile(request: pytest.FixtureRequest) -> None:
    if hasattr(request.node, "clock"):
        pytest.skip("a store in memory joins no transaction")
    with transaction.atomic():
        result = shop.answer.enqueue()
        result.refresh()
        assert result.status == TaskResultStatus.READY
        assert app.store.claim("w", ["default"], 1) == []
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_task_commits_with_the_orm(request: pytest.FixtureRequest) -> None:
    if hasattr(request.node, "clock"):
        pytest.skip("a store in memory has no tables")
    order = Order.objects.create(article="book")
    assert finished(shop.pack.enqueue(order.pk)).status == TaskResultStatus.SUCCESSFUL
    order.refresh_from_db()
    assert order.state == "packed"
    assert not connection.in_atomic_block
