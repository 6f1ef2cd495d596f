"""A password in a URL is for the server alone: nothing that is shown, logged or recorded has it."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback

import pytest
from click.testing import CliRunner

from leasemill import App
from leasemill.cli import main
from leasemill.errors import Invalid, LeasemillError
from leasemill.store.factory import open_store
from leasemill.store.postgres.driver.url import parse_url
from leasemill.store.url import hidden_password
from tests.store.postgres.conftest import with_option
from tests.worker.support import until, working

SECRET = "hunter2secret"
ABSENT = "127.0.0.1:1/none?retry_for_s=0.05&connect_timeout=1"

UNREADABLE = [
    f"postgresql://u:hunter2/secret{SECRET}@h/db",
    f"postgresql://u:hunter2@secret{SECRET}@h/db",
    f"postgresql://u:{SECRET}#x@h/db",
    f"postgresql://u:[{SECRET}@h/db",
    f"postgresql://u:%zz{SECRET}@h/db",
    f"postgresql://u:{SECRET}/h/db",
    f"postgresql://u@h/db?password={SECRET}&no_such_option=1",
    f"postgresql://u@h/db?{SECRET}=x@y",
    f"postgresq://u:{SECRET}@h/db",
    f"postgresq://h/db?password={SECRET}",
    f"postgresql:u:{SECRET}@h/db",
]
WELL_FORMED = [f"postgresql://u:{SECRET}@{ABSENT}", f"postgresql://u@{ABSENT}&password={SECRET}"]


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_cannot_be_read_is_refused_without_quoting_its_password(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        open_store(url)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("url", WELL_FORMED)
def test_neither_the_app_nor_an_error_nor_a_log_shows_it(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    caplog.set_level(logging.DEBUG)
    app = App(url)
    assert SECRET not in repr(app)
    with pytest.raises(LeasemillError) as failed:
        app.store.totals()
    assert SECRET not in "".join(traceback.format_exception(failed.value))
    assert SECRET not in caplog.text


@pytest.mark.parametrize("url", [*WELL_FORMED, *UNREADABLE])
@pytest.mark.parametrize(
    "command", [["jobs", "list"], ["queues", "list"], ["stats"], ["workers"], ["health"], ["db", "status"]]
)
def test_no_command_prints_it(url: str, command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--json", "--url", url])
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    assert "hunter2" not in result.output + result.stderr


def test_the_command_for_folders_does_not_quote_it_either() -> None:
    result = CliRunner().invoke(main, ["wal", "verify", WELL_FORMED[0]])
    assert result.exit_code == 2
    assert "is not a folder" in result.output
    assert SECRET not in result.output


async def test_a_workers_record_and_log_do_not_have_it(
    postgres_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEMILL_URL", raising=False)
    caplog.set_level(logging.DEBUG)
    url = with_option(postgres_url, f"password={SECRET}")
    with App(url) as app:

        @app.job
        async def idles() -> None: ...

        async with working(app, worker_id="here"):
            await until(lambda: app.store.presence.records() != [])
            records = app.store.presence.records()
            shown = await asyncio.to_thread(CliRunner().invoke, main, ["workers", "--json", "--url", url])
    assert SECRET.encode() not in b"".join(record for _, record, _ in records)
    assert json.loads(shown.output)
    assert SECRET not in shown.output + caplog.text


def test_what_is_shown_of_a_url_is_the_rest_of_it() -> None:
    assert hidden_password("postgresql://u:p@h:5432/db?a=b") == "postgresql://u:***@h:5432/db?a=b"
    assert hidden_password("postgresql://h:5432/db?sslpassword=p&a=b") == "postgresql://h:5432/db?sslpassword=***&a=b"
    assert hidden_password("postgresql://u@h/db") == "postgresql://u@h/db"
    assert hidden_password("file:./a:b@c") == "file:./a:b@c"


def test_what_libpq_is_given_is_what_was_written() -> None:
    written = "postgresql:///db?options=-c%20geqo%3Doff&application_name=a%2Bb+c"
    assert parse_url(f"{written}&schema=jobs")[0] == written
