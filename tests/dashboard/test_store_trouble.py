"""A store that stops answering: open pages show it, acts that were done are reported as done, and nothing ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasemill.errors import Unavailable
from leasemill.kernel.model import JobSpec
from leasemill.store.base import Store
from tests.dashboard.conftest import Desk, desk_on

BANNER = "The store does not answer: no connection"
PART = {"Leasemill-Part": "1"}
TROUBLES = [Unavailable("no connection"), OSError("no connection")]


@pytest.fixture
def desk(memory: Store) -> Iterator[Desk]:
    memory.enqueue([JobSpec("one", "mail", "send")])
    made = desk_on(memory)
    yield made
    made.dashboard.close()


def break_store(store: Store, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    for name in ("totals", "pulse"):
        monkeypatch.setattr(store, name, lambda: (_ for _ in ()).throw(error))


@pytest.mark.parametrize("path", ["/", "/workers", "/queues"])
def test_an_open_page_shows_that_the_store_does_not_answer_and_that_it_does_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    sampler = desk.dashboard.open()
    monkeypatch.setattr(sampler, "watched", lambda **_: None)  # no thread: the test counts
    sampler.sample()
    before = desk.client.get(path, headers=PART)
    assert BANNER not in before.text
    same = PART | {"If-None-Match": before.headers["etag"]}
    assert desk.client.get(path, headers=same).status_code == 304
    sampler.trouble = "no connection"
    broken = desk.client.get(path, headers=same)
    assert broken.status_code == 200
    assert BANNER in broken.text
    sampler.trouble = None
    assert BANNER not in desk.client.get(path, headers=PART | {"If-None-Match": broken.headers["etag"]}).text


@pytest.mark.parametrize("error", TROUBLES)
def test_an_act_that_was_done_is_reported_as_done_although_the_store_cannot_be_counted_after_it(
    desk: Desk, memory: Store, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    sampler = desk.dashboard.open()
    monkeypatch.setattr(sampler, "watched", lambda **_: None)
    sampler.sample()
    path = "/acts/pause-queue?queue=mail"
    token = desk.get(path).value("form_token")
    break_store(memory, monkeypatch, error)
    form = {"form_token": token, "reason": "because"}
    response = desk.client.post(path, data=form, headers={"Origin": "http://testserver"}, follow_redirects=False)
    assert response.status_code == 303
    assert memory.queues()[0].is_paused
    assert sampler.trouble == "no connection"


def test_a_page_that_the_system_cannot_read_is_answered_with_503(
    desk: Desk, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.get("/jobs")

    def fails(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(memory, "jobs", fails)
    response = desk.client.get("/jobs")
    assert response.status_code == 503
    assert "Too many open files" in response.text
