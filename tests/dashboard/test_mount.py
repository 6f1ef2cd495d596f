"""The dashboard as a part of `leasemill serve`, in a process of its own: a key signs in, and its name is on record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from leasemill.cli import main
from leasemill.kernel.model import JobSpec
from leasemill.store.factory import open_store
from leasemill.wire.routes import Role
from tests.dashboard.markup import parsed
from tests.lab.served import Served, add_key, serving

PAUSE = "/dashboard/acts/pause-queue?queue=mail"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"file:{tmp_path_factory.mktemp('dashboard') / 'jobs'}"
    with open_store(url) as store:
        store.enqueue([JobSpec("letter", "mail", "send", b'{"iban": "DE02", "to": "ann"}')])
    return url


@pytest.fixture(scope="module")
def keys(url: str) -> dict[str, str]:
    roles = {"reader": Role.READER, "operator": Role.OPERATOR, "worker": Role.WORKER}
    return {name: add_key(url, role, name=name)[1] for name, role in roles.items()}


@pytest.fixture(scope="module")
def served(url: str, keys: dict[str, str]) -> Iterator[Served]:
    assert keys
    with serving(url, "--require-keys", "--dashboard", "--redact", "iban") as served:
        yield served
        assert served.stop() == 0, served.text
        assert f"dashboard on {served.url}/dashboard\n" in served.text


def client(served: Served, key: str) -> httpx.Client:
    """A browser sends what a person types as the password."""
    return httpx.Client(base_url=served.url, auth=("", key), timeout=60)


def act(browser: httpx.Client, served: Served) -> httpx.Response:
    asked = browser.get(PAUSE)
    if asked.status_code != 200:
        return asked
    form = {"form_token": parsed(asked.text).value("form_token"), "reason": "a break"}
    return browser.post(PAUSE, data=form, headers={"Origin": served.url}, follow_redirects=False)


def test_a_key_that_may_read_looks_and_one_that_may_not_is_refused(served: Served, keys: dict[str, str]) -> None:
    assert httpx.get(f"{served.url}/dashboard/", timeout=60).status_code == 401
    with client(served, keys["worker"]) as browser:
        assert browser.get("/dashboard/").status_code == 403
    with client(served, keys["reader"]) as browser:
        page = browser.get("/dashboard/jobs")
        assert page.status_code == 200
        assert "letter" in page.text
        assert keys["reader"] not in page.text
        assert act(browser, served).status_code == 403


def test_an_act_is_recorded_with_the_name_of_the_key(url: str, served: Served, keys: dict[str, str]) -> None:
    with client(served, keys["operator"]) as browser:
        assert act(browser, served).status_code == 303
    with open_store(url) as store:
        (action, *_) = store.actions()
        assert (action.by, action.reason) == ("operator", "a break")
        assert store.queues()[0].is_paused


def test_fields_that_are_named_are_not_shown(served: Served, keys: dict[str, str]) -> None:
    with client(served, keys["reader"]) as browser:
        shown = browser.get("/dashboard/job?id=letter").text
    assert "ann" in shown
    assert "DE02" not in shown


def test_fields_are_named_for_pages_alone() -> None:
    refused = CliRunner().invoke(main, ["serve", "--redact", "iban"])
    assert refused.exit_code != 0
    assert "--redact needs --dashboard" in refused.output


def test_without_the_option_there_is_no_dashboard(tmp_path: Path) -> None:
    with serving(f"file:{tmp_path / 'jobs'}") as served:
        assert httpx.get(f"{served.url}/dashboard/", timeout=60).status_code == 404


def test_without_keys_whoever_reaches_loopback_may_act(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    with open_store(url) as store:
        store.enqueue([JobSpec("letter", "mail", "send")])
    with serving(url, "--dashboard") as served, httpx.Client(base_url=served.url, timeout=60) as browser:
        assert act(browser, served).status_code == 303
        assert browser.get("/dashboard/", headers={"Origin": "https://evil.example"}).status_code == 403
    with open_store(url) as store:
        assert store.actions()[0].by == "anybody on this machine"
