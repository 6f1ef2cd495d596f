"""Leasemill in a Django project: `"leasemill.contrib.django"` in INSTALLED_APPS, `LEASEMILL = {...}` in the settings.

    from leasemill.contrib.django import app

    @app.job
    def send(order_id: int) -> None: ...

`app` is bound to the store that the settings name, by default the tables in the "default" database. Nothing here reads
the settings before the store is used. `LeasemillBackend` is for `TASKS`; the names for tasks are imported when they are
first used, because `django.tasks` may not be there.
"""

from typing import TYPE_CHECKING

try:
    import django as _  # noqa: F401
except ModuleNotFoundError as error:
    message = "leasemill.contrib.django needs Django: pip install 'leasemill[django]'"
    raise ModuleNotFoundError(message, name=error.name) from error

from leasemill.contrib.django.application import DjangoApp, app

__all__ = ["DjangoApp", "LeasemillBackend", "LeasemillTask", "LeasemillTaskContext", "app"]

if TYPE_CHECKING:
    from leasemill.contrib.django.task_backend.backend import LeasemillBackend
    from leasemill.contrib.django.task_backend.task import LeasemillTask, LeasemillTaskContext
else:
    _HOMES = {"LeasemillBackend": "backend", "LeasemillTask": "task", "LeasemillTaskContext": "task"}

    def __getattr__(name):
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.task_backend.{_HOMES[name]}"), name)
