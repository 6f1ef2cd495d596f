"""The shop's tasks: found by autodiscovery."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from leasemill import Fail, Release
from leasemill.contrib.django.task_backend.names import TASKS
from tests.contrib.django.shop.models import Order

task: Any = import_module(TASKS).task


class ShopError(Exception):
    pass


@task
def nothing(*args: Any, **kwargs: Any) -> None:
    return None


@task()
async def nothing_async(*args: Any, **kwargs: Any) -> None:
    return None


@task()
def answer() -> int:
    return 42


@task(queue_name="mail", priority=10)
def mail(to: str, lines: list[str]) -> dict[str, Any]:
    return {"to": to, "lines": lines}


@task()
def raises(kind: str) -> None:
    match kind:
        case "value":
            raise ValueError("This task failed")
        case "exit":
            raise SystemExit("This task left")
        case "own":
            raise ShopError("closed")
        case "nested":
            raise ValueError(ValueError("This task failed"))
        case "fail":
            raise Fail("never")
        case _:
            raise AssertionError(kind)


@task(retry=2)
def flaky(kind: str = "value") -> None:
    if kind == "release":
        raise Release(0)
    raise ValueError("not now")


@task()
def returns_a_function() -> object:
    return lambda: True


@task(takes_context=True)
def own_id(context: Any) -> Any:
    return [context.task_result.id, context.attempt, context.run.job_id]


@task(takes_context=True, retry=1)
def second_time(context: Any) -> Any:
    if context.attempt == 1:
        raise ShopError("the first time")
    return [context.attempt, len(context.task_result.errors), len(context.task_result.worker_ids)]


@task(takes_context=True)
def pack(context: Any, order_id: int) -> None:
    with context.run.commit():
        Order.objects.filter(pk=order_id).update(state="packed")


@task(lane="customer", unique=True)
def bill(customer: str, cents: int = 0) -> None:
    return None
