"""What Django loads for `"leasemill.contrib.django"` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from leasemill.contrib.django.configuration import configuration


class LeasemillConfig(AppConfig):
    name = "leasemill.contrib.django"
    label = "leasemill"
    verbose_name = "Leasemill"

    def ready(self) -> None:
        """A job is known when its module is imported: in web processes, which enqueue it, and in workers."""
        from leasemill.contrib.django import checks  # noqa: F401, PLC0415  (registers them)

        autodiscover_modules(*configuration().modules)
