"""`LEASEMILL`: which store it names, and what `manage.py check` reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import override_settings
from django.test.utils import setup_test_environment, teardown_test_environment
from psycopg.conninfo import conninfo_to_dict

from leasemill.contrib.django import app
from leasemill.contrib.django import configuration as configuration_module
from leasemill.contrib.django.checks import check_settings, check_tables
from leasemill.contrib.django.configuration import configuration, database_url
from leasemill.store.memory import MemoryStore
from leasemill.store.postgres.driver.url import parse_url
from tests.contrib.django import project


def found(**settings: Any) -> list[str]:
    with override_settings(LEASEMILL=settings):
        return [f"{one.id}: {one.msg}" for one in check_settings()]


def test_the_jobs_of_installed_apps_are_found() -> None:
    assert {"ship", "notify"} <= set(app.jobs)
    assert "shipping" in app.queues


def test_the_settings_of_the_project_pass_its_checks() -> None:
    assert check_settings() == []
    assert check_tables(databases=["default"]) == []
    assert check_tables() == []


def test_the_store_is_opened_when_it_is_first_used_and_follows_the_settings(tmp_path: Path) -> None:
    app.close()
    with override_settings(LEASEMILL={"URL": "memory:"}):
        assert isinstance(app.store, MemoryStore)
        app.close()
    with override_settings(LEASEMILL={"URL": f"file:{tmp_path}/jobs"}):
        assert app.url == f"file:{tmp_path}/jobs"
        app.store  # noqa: B018  (opens it)
        app.close()
    assert (tmp_path / "jobs").exists()
    assert app.store.name.startswith("postgresql://")
    app.close()


@pytest.mark.parametrize("url", ["file:/srv/jobs", "http://127.0.0.1:7766", "postgresql://direct/shop?schema=work"])
def test_tests_do_not_use_the_store_that_the_projects_url_names(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = {"URL": url}
    monkeypatch.setattr(configuration_module, "_of_project", setting)
    with override_settings(LEASEMILL=setting):
        assert configuration().url_in_use == url
        setup_test_environment()
        try:
            assert configuration().url_in_use == "memory:"
            with override_settings(LEASEMILL={"URL": "file:/tmp/of-this-test"}):
                assert configuration().url_in_use == "file:/tmp/of-this-test"
        finally:
            teardown_test_environment()
        assert configuration().url_in_use == url


def test_tests_use_the_test_database_where_a_url_is_for_the_stores_own_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = {"URL": "postgresql://direct/shop?schema=work", "DATABASE": "default"}
    monkeypatch.setattr(configuration_module, "_of_project", setting)
    with override_settings(LEASEMILL=setting):
        setup_test_environment()
        try:
            chosen = configuration()
            assert chosen.url_in_use == database_url("default", "work", {})
        finally:
            teardown_test_environment()


def test_overridden_settings_name_the_store_at_once_and_the_first_returns_after_them() -> None:
    assert app.store.name.startswith("postgresql://")
    with override_settings(LEASEMILL={"URL": "memory:"}):
        assert isinstance(app.store, MemoryStore)
    assert app.store.name.startswith("postgresql://")
    app.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"DATABASE": "sales"}, "which DATABASES does not have (it has 'default', 'other', 'lite')"),
        ({"DATABASE": "lite"}, "a database of sqlite: jobs live in PostgreSQL"),
        ({"DATABSE": "default"}, "has no setting 'DATABSE'; did you mean 'DATABASE'?"),
        ({"URL": "redis://"}, "is not the URL of a store"),
        ({"URL": "memory:", "DATABASE": "default"}, "leave one of them out"),
        ({"URL": "http://127.0.0.1:7766", "DATABASE": "default"}, "leave one of them out"),
        ({"URL": "postgresql:///a", "SCHEMA": "jobs"}, "write the schema and the options into it"),
        ({"SCHEMA": "Jobs!"}, "schema 'Jobs!' is not a name"),
        ({"OPTIONS": {"pool_size": "many"}}, "an option of the store's URL is wrong"),
    ],
)
def test_a_wrong_setting_is_an_error_that_names_the_remedy(settings: dict[str, Any], sentence: str) -> None:
    (message,) = found(**settings)
    assert message.startswith("leasemill.E001: ")
    assert sentence in message


def test_a_store_elsewhere_is_a_warning_because_it_joins_no_transaction(tmp_path: Path) -> None:
    (message,) = found(URL=f"file:{tmp_path}")
    assert message.startswith("leasemill.W001: ")
    (message,) = found(URL="http://127.0.0.1:7766")
    assert message.startswith("leasemill.W001: ")
    assert found(URL="memory:") == []


@override_settings(LEASEMILL=["default"])
def test_a_setting_that_is_no_dictionary_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="LEASEMILL is a list: write LEASEMILL = "):
        configuration()


def test_a_url_beside_a_database_is_for_the_store_s_own_connections() -> None:
    with override_settings(LEASEMILL={"URL": "postgresql://direct/shop?schema=work", "DATABASE": "default"}):
        chosen = configuration()
    assert (chosen.database, chosen.schema) == ("default", "work")
    assert chosen.store_url == "postgresql://direct/shop?schema=work"


@pytest.mark.parametrize("host", ["db.example", "/run/postgresql", "::1", "a,b", ""])
def test_what_the_database_s_settings_give_libpq_reaches_the_store(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        **project.DATABASE,
        "NAME": "sh op",
        "USER": "ann@work",
        "PASSWORD": "p/ss w?rd&",
        "HOST": host,
        "PORT": "6432",
        "OPTIONS": {
            "sslmode": "require",
            "options": "-c search_path=shop",
            "assume_role": "web user",
            "isolation_level": 3,
            "prepare_threshold": 5,
        },
    }
    monkeypatch.setattr(connections["default"], "settings_dict", given)
    conninfo, options = parse_url(database_url("default", "jobs", {"pool_size": 3, "listen": False}))
    assert (options.schema, options.pool_size, options.listen) == ("jobs", 3, False)
    expected = {
        "dbname": "sh op",
        "user": "ann@work",
        "password": "p/ss w?rd&",
        "port": "6432",
        "sslmode": "require",
        "options": "-c search_path=shop -c role=web\\ user",
    }
    assert conninfo_to_dict(conninfo) == {**expected, **({"host": host} if host else {})}
