"""Pages show what the store holds, on every store."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from leasemill import dashboard
from leasemill.dashboard import ViewerRole
from leasemill.dashboard.pages import PAGES
from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.worker_records import WorkerRecord, encode_record
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.filling import Filled, fill, spec

ASSETS = Path(dashboard.__file__).parent / "assets"
LISTED = [page.path for page in PAGES if page.section is not None]


@pytest.mark.parametrize("path", LISTED)
def test_a_page_of_an_empty_store_says_that_there_is_nothing(memory: Store, path: str) -> None:
    desk = desk_on(memory)
    page = desk.get(path)
    assert page.find("h1")
    desk.dashboard.close()


def test_every_page_of_the_navigation_opens(desk: Desk, filled: Filled) -> None:
    for path in LISTED:
        page = desk.get(path)
        (current,) = page.find("a", aria_current="page")
        assert current.attributes["href"] == path


def test_the_overview_shows_what_was_counted(desk: Desk, filled: Filled, store: Store) -> None:
    page = desk.get("/")
    tiles = {
        one.text.split()[0]: one.text.split()[1]
        for one in page.elements
        if "tile" in one.attributes.get("class", "").split()
    }
    counts = store.totals().counts
    assert tiles["Waiting"] == str(counts[JobState.READY])
    assert tiles["Running"] == str(counts[JobState.LEASED]) == "1"
    assert tiles["Failed"] == str(counts[JobState.FAILED] + counts[JobState.DEAD]) == "2"


def test_the_overview_begins_with_what_needs_attention(memory: Store) -> None:
    desk = desk_on(memory)
    memory.enqueue([JobSpec("one", "mail", "send"), JobSpec("two", "paused", "send")])
    memory.pause("paused", by="ann", reason="the gateway is down")
    assert attention(desk) == {
        "No worker: mail (1 job waiting)": "/queue?name=mail",
        "Paused: paused (1 job waiting)": "/queue?name=paused",
    }
    serve(memory, "up", interval_s=3_600.0)
    assert [*attention(desk)] == ["Paused: paused (1 job waiting)"]
    serve(memory, "down", interval_s=-1.0)
    assert [*attention(desk)] == ["1 worker has no heartbeat", "Paused: paused (1 job waiting)"]
    desk.dashboard.close()


def attention(desk: Desk) -> dict[str, str]:
    page = desk.get("/")
    return {one.text: one.attributes["href"] for one in page.find("a") if "concern" in one.attributes.get("class", "")}


def serve(store: Store, worker: str, interval_s: float) -> None:
    record = WorkerRecord(worker, "host", 1, 0.0, 0.0, interval_s, {"mail": 1}, 4, False, [], {})
    store.presence.publish(worker, encode_record(record))


def test_queues_are_listed_with_their_jobs(desk: Desk, filled: Filled) -> None:
    page = desk.get("/queues")
    assert page.rows() == ["lanes", "leased", "mail", "zombies"]
    assert desk.get("/queues?order=failed").rows()[0] in {"lanes", "mail"}


def test_jobs_are_listed_newest_first(desk: Desk, filled: Filled) -> None:
    rows = desk.get("/jobs").rows()
    assert rows[:2] == [filled.scheduled, filled.ready]
    assert len(rows) == 10


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=failed", {"failed-1", "head-1"}),
        ("state=failed&state=cancelled", {"failed-1", "head-1", "cancelled-1"}),
        ("queue=leased", {"leased-1"}),
        ("state=leased", {"leased-1"}),
        ("state=leased&queue=mail", set()),
        ("state=ready&queue=mail", {"ready-1", "scheduled-1", "retried-1"}),
        ("state=succeeded", {"succeeded-1"}),
        ("state=ready&state=leased&queue=leased", {"leased-1"}),
        ("queue=lanes&lane=lane+plain+text", {"head-1", "behind-1"}),
        ("id=succ", {"succeeded-1"}),
        ("id=ready-1", {"ready-1"}),
        ("error=KeyError", {"retried-1"}),
        ("header=tenant%3Dplain+text&queue=leased", {"leased-1"}),
        ("header=tenant%3Dother", set()),
        ("header=tenant&state=cancelled", {"cancelled-1"}),
        ("after=2999-01-01T00:00", set()),
        ("before=2000-01-01T00:00:00Z", set()),
    ],
)
def test_filters_select_jobs(desk: Desk, filled: Filled, query: str, expected: set[str]) -> None:
    assert set(desk.get(f"/jobs?{query}").rows()) == expected


def test_a_filter_that_cannot_be_read_says_what_to_write(desk: Desk) -> None:
    assert "is not a state" in desk.get("/jobs?state=asleep", 400).text
    assert "is not a time" in desk.get("/jobs?after=yesterday", 400).text


def test_an_older_page_stays_as_it_is_while_jobs_arrive(desk: Desk, store: Store) -> None:
    store.enqueue([JobSpec(f"job-{number:03}", "mail", "send") for number in range(120)])
    first = desk.get("/jobs")
    (older,) = [one.attributes["href"] for one in first.find("a", rel="next")]
    before = desk.get(older).rows()
    store.enqueue([JobSpec("late", "mail", "send")])
    assert desk.get(older).rows() == before
    assert before == [f"job-{number:03}" for number in range(69, 19, -1)]
    assert desk.get("/jobs").rows()[0] == "late"


@pytest.mark.parametrize(
    ("job_id", "sentence"),
    [
        ("ready-1", "It has been due since"),
        ("scheduled-1", "not due until"),
        ("leased-1", "its handler started at"),
        ("succeeded-1", "took effect"),
        ("failed-1", "The error: ValueError: plain text"),
        ("retried-1", "It waits for retry 1"),
        ("cancelled-1", "cancelled it"),
        ("zombie-1", "too late"),
        ("behind-1", "It waits in its lane behind 'head-1'"),
        ("head-1", "blocks lane"),
    ],
)
def test_a_job_is_explained(desk: Desk, filled: Filled, job_id: str, sentence: str) -> None:
    page = desk.get(f"/job?id={job_id}")
    assert sentence in page.text
    assert page.find("h1")[0].text == job_id


def test_a_job_shows_its_attempts_and_no_token(desk: Desk, filled: Filled, store: Store) -> None:
    page = desk.get(f"/job?id={filled.failed}")
    job = store.job(filled.failed)
    assert job is not None
    token = job.executions[0].token
    assert f"…{token[-6:]}" in page.text
    assert token not in page.text
    assert "caused by plain text" in page.text


def test_secrets_are_not_shown_and_not_downloaded(desk: Desk, filled: Filled) -> None:
    page = desk.get(f"/job?id={filled.succeeded}")
    assert "hunter2" not in page.text
    assert page.text.count("(redacted)") == 3  # password, authorization, token
    for part in ("payload", "result"):
        response = desk.client.get(f"/download?id={filled.succeeded}&part={part}")
        assert response.headers["content-disposition"] == f'attachment; filename="succeeded-1-{part}.json"'
        assert "hunter2" not in response.text
        assert "plain text" in response.text


def test_a_job_that_does_not_exist_is_not_found(desk: Desk) -> None:
    assert "there is no job 'nobody'" in desk.get("/job?id=nobody", 404).text


def test_what_is_not_found_is_shown_within_the_frame(memory: Store) -> None:
    desk = desk_on(memory)
    page = desk.get("/job?id=nobody", 404)
    assert page.find("h1")[0].text == "Not found"
    assert "/queues" in [one.attributes["href"] for one in page.find("a")]
    desk.dashboard.close()


def test_what_cannot_be_undone_looks_like_it(desk: Desk, filled: Filled) -> None:
    page = desk.get(f"/job?id={filled.failed}")
    tones = {one.text: one.attributes["class"].split() for one in page.find("a") if "data-act" in one.attributes}
    assert "harm" in tones["Purge"]
    assert "harm" in tones["Cancel"]
    assert "harm" not in tones["Redrive"]


def test_ids_with_any_printable_characters_lead_to_their_job(desk: Desk, store: Store) -> None:
    names = ["a/b", "..", "x?y=1&z#w", "ü ber%20", "//host", '"quoted"', "a+b"]
    store.enqueue([JobSpec(name, "mail", "send") for name in names])
    page = desk.get("/jobs")
    links = {one.text: one.attributes["href"] for one in page.find("a", class_="id")}
    assert set(links) == set(names)
    for name, link in links.items():
        assert desk.get(link).find("h1")[0].text == name


def test_an_unchanged_part_is_not_sent_again(memory: Store) -> None:
    desk = desk_on(memory, ViewerRole.READ)
    fill(memory)
    first = desk.client.get("/job?id=succeeded-1", headers={"Leasemill-Part": "1"})
    assert "<html" not in first.text
    tag = first.headers["etag"]
    headers = {"Leasemill-Part": "1", "If-None-Match": tag}
    again = desk.client.get("/job?id=succeeded-1", headers=headers)
    assert again.status_code in {200, 304}  # an age may have moved on by a second
    memory.enqueue([spec("more", "mail", "x")])
    desk.dashboard.close()


def test_what_a_browser_loads_is_small() -> None:
    files = list(ASSETS.iterdir())
    assert len(files) >= 8
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= 100_000
