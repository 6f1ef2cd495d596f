"""`LeasemillBackend`: Django's tasks as jobs of the project's app.

    TASKS = {"default": {"BACKEND": "leasemill.contrib.django.LeasemillBackend", "QUEUES": ["default", "mail"]}}

A task's kind is its module path. It is known when its module is imported, never imported by its name: `validate_task`,
which Django calls at each declaration, registers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.core.checks import CheckMessage, Error
from django.utils import timezone

from leasemill.api.job import JobType
from leasemill.api.policy import run_policy
from leasemill.api.retry import retry_of
from leasemill.api.unique import Unique
from leasemill.contrib.django.application import app
from leasemill.contrib.django.task_backend.handler import handler_of
from leasemill.contrib.django.task_backend.names import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
)
from leasemill.contrib.django.task_backend.results import instant, new_result, put, result_of
from leasemill.contrib.django.task_backend.task import LeasemillTask, bound_arguments, job_priority, parameters_of
from leasemill.errors import Invalid
from leasemill.kernel.bounds import check_name
from leasemill.kernel.model import Job
from leasemill.operator.wording import did_you_mean

OPTIONS: Final = ("retry", "lease", "timeout", "max_expirations")
PRIORITY: Final = "django-priority"
BACKEND: Final = "django-backend"
"""Headers with what a job does not have: Django's own priority, and another backend than the task's."""

_declared: dict[str, tuple[Any, JobType[..., Any]]] = {}
"""Tasks by their kind, as they were declared, with their jobs."""


class LeasemillBackend(BaseTaskBackend):
    """Durable tasks: leased, retried, and enqueued in the transaction that is open."""

    task_class = LeasemillTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        app.task_queues.update(self.queues)

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        try:
            check_name("the module path of a task", task.module_path)
            check_name("queue", task.queue_name)
            self._register(task)
        except Invalid as error:
            raise InvalidTask(str(error)) from None

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        result = new_result(task, self.alias, args, kwargs)
        declared, job = _declared[task.module_path]
        headers = {BACKEND: self.alias} if self.alias != declared.backend else {}
        if task.priority != 0:
            headers[PRIORITY] = str(task.priority)
        chosen = job.options(
            queue=task.queue_name,
            priority=job_priority(task.priority),
            run_at=None if task.run_after is None else _aware(task.run_after),
            headers=headers or None,
        )
        handle = chosen.enqueue(args=result.args, kwargs=result.kwargs)
        made = app.store.job(handle.id)  # for the store's time: read again, the result is equal to this one
        put(result, id=handle.id, enqueued_at=timezone.now() if made is None else instant(made.created_at))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        job = app.store.job(str(result_id))
        found = None if job is None else _declared.get(job.spec.kind)
        if job is None or found is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, _as_enqueued(found[0], job), self.alias)

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        yield from super().check(**kwargs)
        for name in self.options:
            if name not in OPTIONS:
                known = f"{did_you_mean(str(name), OPTIONS)} (there are {', '.join(OPTIONS)})"
                message = f"TASKS[{self.alias!r}] has no option {name!r}{known}."
                yield Error(message, hint="The store is named by LEASEMILL.", id="leasemill.E004")
        try:
            self._policy({})
            for queue in self.queues:
                check_name("queue", queue)
        except Invalid as error:
            yield Error(f"TASKS[{self.alias!r}]: {error}", id="leasemill.E005")

    # Declaring

    def _register(self, task: Any) -> None:
        kind = task.module_path
        known = _declared.get(kind)
        if known is not None and known[0].func is task.func:
            return  # another way to enqueue the same task
        own = {name: value for name in OPTIONS if (value := getattr(task, name, None)) is not None}
        bound = bound_arguments(task)
        lane = getattr(task, "lane", None)
        if lane is not None and lane not in parameters_of(task).parameters:
            names = ", ".join(parameters_of(task).parameters)
            raise Invalid(f"lane of {kind}: {lane!r} is not one of its parameters ({names})")
        declare = app.job(
            name=kind,
            queue=task.queue_name,
            priority=job_priority(task.priority),
            lane=None if lane is None else lambda args, kwargs: bound(args, kwargs)[lane],
            unique=Unique(by=bound) if getattr(task, "unique", False) else None,
            **self._policy(own),
        )
        _declared[kind] = task, declare(handler_of(task, type(self)))

    def _policy(self, own: dict[str, Any]) -> dict[str, Any]:
        """Django's tasks run once unless retries are asked for."""
        chosen: dict[str, Any] = {
            "retry": 0,
            **{name: self.options[name] for name in OPTIONS if name in self.options},
            **own,
        }
        asked = retry_of(chosen["retry"]).policy()
        run_policy(asked, chosen.get("lease"), chosen.get("timeout"), None, chosen.get("max_expirations"))
        return chosen


def _as_enqueued(task: Any, job: Job) -> Any:
    """The task with what `using()` had changed."""
    headers = job.spec.headers or {}
    return replace(
        task,
        queue_name=job.spec.queue,
        priority=int(headers.get(PRIORITY, "0")),
        backend=headers.get(BACKEND, task.backend),
        run_after=None if job.spec.run_at is None else instant(job.spec.run_at),
    )


def _aware(at: datetime) -> datetime:
    return at if timezone.is_aware(at) else timezone.make_aware(at)
