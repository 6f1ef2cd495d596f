"""A project to which Leasemill has just been added: its tests know nothing of it.

`test_existing_tests.py` runs them with `manage.py test` and with pytest. BOOKS_DATABASE chooses the database.
"""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "tests"
USE_TZ = True
STATIC_URL = "static/"
ROOT_URLCONF = "tests.contrib.django.newcomer.books.urls"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["leasemill.contrib.django", "tests.contrib.django.newcomer.books"]
DATABASES: dict[str, Any]
LEASEMILL: dict[str, Any]

if os.environ["BOOKS_DATABASE"] == "sqlite":
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["BOOKS_SQLITE"]}}
    LEASEMILL = {"URL": os.environ["BOOKS_FOLDER"]}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["BOOKS_DATABASE"],
            "USER": os.environ["PGUSER"],
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"],
        }
    }
    LEASEMILL = {}
