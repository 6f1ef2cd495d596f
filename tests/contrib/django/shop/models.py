from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class Order(models.Model):
    article: Any = models.CharField(max_length=50, unique=True)
    state: Any = models.CharField(max_length=20, default="new")
    shipped: Any = models.IntegerField(default=0)

    objects: ClassVar[models.Manager[Order]] = models.Manager()

    class Meta:
        app_label = "shop"
