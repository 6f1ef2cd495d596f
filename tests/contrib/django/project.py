"""A Django project for these tests: its settings, made once in a process, before any of its modules is imported.

The server is started later: a fixture fills its address into the settings' own dictionaries.
"""

from __future__ import annotations

from typing import Any, Final

import django
from django.conf import settings

DATABASE: Final[dict[str, Any]] = {"ENGINE": "django.db.backends.postgresql", "NAME": "unknown"}
OTHER: Final[dict[str, Any]] = {"ENGINE": "django.db.backends.postgresql", "NAME": "unknown"}
TASKS_APP: Final = ["django_tasks"] if django.VERSION < (6, 0) else []


def configure() -> None:
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="tests",
        USE_TZ=True,
        DATABASES={
            "default": DATABASE,
            "other": OTHER,
            "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        INSTALLED_APPS=["leasemill.contrib.django", "tests.contrib.django.shop", *TASKS_APP],
        LEASEMILL={"DATABASE": "default", "OPTIONS": {"pool_size": 4}},
        TASKS={
            "default": {
                "BACKEND": "leasemill.contrib.django.LeasemillBackend",
                "QUEUES": ["default", "mail"],
            }
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()
