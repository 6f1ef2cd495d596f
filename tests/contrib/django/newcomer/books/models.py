from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class Book(models.Model):
    title: Any = models.CharField(max_length=50)
    state: Any = models.CharField(max_length=20, default="new")

    objects: ClassVar[models.Manager[Book]] = models.Manager()

    class Meta:
        app_label = "books"
