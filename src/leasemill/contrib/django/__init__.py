"""Leasemill in a Django project: `"leasemill.contrib.django"` in INSTALLED_APPS, `LEASEMILL = {...}` in the settings.

    from leasemill.contrib.django import app

    @app.job
    def send(order_id: int) -> None: ...

`app` is bound to the store that the settings name, by default the tables in the "default" database. Nothing here reads
the settings before the store is used. The backend for `django.tasks` is `leasemill.contrib.django.tasks`.
"""

from leasemill.contrib.django.application import DjangoApp, app

__all__ = ["DjangoApp", "app"]
