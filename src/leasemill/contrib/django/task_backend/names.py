"""The names of `django.tasks` that are used here, wherever they are: in Django from 6.0 on, else in the backport.

They are looked up, not imported: neither is there for every version of Python, so for type checkers they are Any.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import django

IS_BACKPORT: Final = django.VERSION < (6, 0)
TASKS: Final = "django_tasks" if IS_BACKPORT else "django.tasks"


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


BaseTaskBackend: Any = _named(f"{TASKS}.backends.base", "BaseTaskBackend")
InvalidTask: Any = _named(f"{TASKS}.exceptions", "InvalidTaskError" if IS_BACKPORT else "InvalidTask")
Task: Any = _named(f"{TASKS}.base", "Task")
TaskContext: Any = _named(f"{TASKS}.base", "TaskContext")
TaskError: Any = _named(f"{TASKS}.base", "TaskError")
TaskResult: Any = _named(f"{TASKS}.base", "TaskResult")
TaskResultDoesNotExist: Any = _named(f"{TASKS}.exceptions", "TaskResultDoesNotExist")
TaskResultStatus: Any = _named(f"{TASKS}.base", "TaskResultStatus")
normalize_json: Any = _named("django_tasks.utils" if IS_BACKPORT else "django.utils.json", "normalize_json")
task_enqueued: Any = _named(f"{TASKS}.signals", "task_enqueued")
task_finished: Any = _named(f"{TASKS}.signals", "task_finished")
task_started: Any = _named(f"{TASKS}.signals", "task_started")
