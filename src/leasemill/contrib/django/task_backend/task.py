"""`LeasemillTask`: a task with a lane, retries and a unique key. `@task(retry=5, lane="customer")`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leasemill.api.context import Context
from leasemill.api.policy import Duration, LeasePreset
from leasemill.api.retry import RetryChoice
from leasemill.contrib.django.task_backend.names import Task, TaskContext

LEAST_PRIORITY: Final = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasemillTask(Task):
    """A Task with additional options; what is left out is taken from the backend's OPTIONS.

    `lane`: the parameter whose value is the lane's key. `unique`: one task at a time for the same arguments.
    """

    lane: str | None = None
    retry: RetryChoice | None = None
    unique: bool = False
    lease: Duration | LeasePreset | None = None
    timeout: Duration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasemillTaskContext(TaskContext):
    """The context of a task with `takes_context=True`: Django's, and the run's."""

    run: Context
    """The run: for `with context.run.commit() as tx`, the progress, and whether the lease is lost."""


def job_priority(priority: int) -> int:
    """Django's 201 levels as our ten: in the same order, some merged. Django's default, 0, is 4."""
    if priority < 0:
        return (priority - LEAST_PRIORITY) * 4 // 100
    return 4 if priority == 0 else 5 + (priority - 1) * 5 // 100


def parameters_of(task: Any) -> inspect.Signature:
    """Return the parameters that a caller of the task passes."""
    signature = inspect.signature(task.func)
    if not task.takes_context:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def bound_arguments(task: Any) -> Callable[[list[Any], dict[str, Any]], dict[str, Any]]:
    """A call's arguments by name, however they were passed."""
    signature = parameters_of(task)

    def bound(args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        found = signature.bind(*args, **kwargs)
        found.apply_defaults()
        return dict(found.arguments)

    return bound
