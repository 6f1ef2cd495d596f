"""The benchmark's tables for Django, imported when it is configured."""

from __future__ import annotations

from typing import Any

from django.db import models


class Entry(models.Model):
    account: Any = models.TextField()
    cents: Any = models.BigIntegerField()

    class Meta:
        app_label, db_table, managed = "benchmark", "entries", False


class Marker(models.Model):
    number: Any = models.BigIntegerField(primary_key=True)
    committed_at: Any = models.DateTimeField(null=True)

    class Meta:
        app_label, db_table, managed = "benchmark", "markers", False
