"""The app that Django loads for `"leasemill.contrib.django"` in INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.signals import connection_created
from django.utils.module_loading import autodiscover_modules

from leasemill.contrib.django.application import app
from leasemill.contrib.django.configuration import NAME, configuration, remember_project


class LeasemillConfig(AppConfig):
    name = "leasemill.contrib.django"
    label = "leasemill"
    verbose_name = "Leasemill"

    def ready(self) -> None:
        """A job is known when its module is imported: in web processes, which enqueue it, and in workers."""
        from leasemill.contrib.django import checks  # noqa: F401  (registers them)

        remember_project()
        connection_created.connect(_close_before_a_database_changes, dispatch_uid="leasemill")
        setting_changed.connect(_close_if_ours, dispatch_uid="leasemill")
        autodiscover_modules(*configuration().modules)


def _close_before_a_database_changes(connection: Any, **_: Any) -> None:
    """Close the store's own connections before Django creates, copies or drops a test database.

    Django does that on a connection that belongs to no alias, and PostgreSQL refuses to drop or copy a database that
    others are connected to. The store is opened again at its next use, with the alias's settings as they are then.
    """
    if connection.alias not in connections:
        app.close()


def _close_if_ours(setting: str, **_: Any) -> None:
    """`override_settings(LEASEMILL=...)` names another store: use that one, and after the block the first again."""
    if setting == NAME:
        app.close()
