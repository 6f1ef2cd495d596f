"""The project's databases: on a server of their own, made with `manage.py migrate`."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from psycopg.conninfo import conninfo_to_dict

from leasemill.testing.postgres import PostgresServer
from tests.contrib.django import project
from tests.store.postgres.conftest import TABLES

project.configure()

from django.core.management import call_command  # noqa: E402  (after the settings)
from django.db import connections  # noqa: E402

from leasemill.contrib.django import app  # noqa: E402


@pytest.fixture(scope="session")
def django_server() -> Iterator[str]:
    with PostgresServer(settings={"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}) as server:
        yield server.url()


@pytest.fixture(scope="session", autouse=True)
def databases(django_server: str) -> Iterator[None]:
    place: dict[str, Any] = conninfo_to_dict(django_server)
    with psycopg.connect(django_server, autocommit=True) as admin:
        for name, settings in (("shop", project.DATABASE), ("other", project.OTHER)):
            database = f"{name}_{os.getpid()}"
            admin.execute(f"create database {database}".encode())
            settings.update(
                NAME=database, USER=place.get("user", ""), HOST=place.get("host", ""), PORT=str(place.get("port", ""))
            )
            if place.get("password"):
                settings["PASSWORD"] = place["password"]
    call_command("migrate", verbosity=0)
    connections.close_all()
    yield
    app.close()
    connections.close_all()
    asyncio.run(close_of_async_code())


async def close_of_async_code() -> None:
    """What was opened in the thread of sync_to_async, which lives as long as the process."""
    await sync_to_async(connections.close_all)()


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    """Connections belong to threads: those of a worker's threads go with them, here and not in another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def empty_store() -> Iterator[None]:
    """Without a job: for tests whose transactions commit."""
    yield
    with connections["default"].cursor() as cursor:  # how queues are used stays: the store remembers that
        cursor.execute(";".join(f"delete from leasemill.{table}" for table in TABLES if table != "queues"))
        cursor.execute("delete from shop_order")
    connections.close_all()
