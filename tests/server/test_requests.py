"""What a program in another language sees: paths, JSON, statuses, problems."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from leasemill.errors import Broken, Unavailable
from leasemill.kernel.model import JobSpec, JobState, Policy
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.wire.routes import ROUTES
from tests.lab.http_server import ServerThread
from tests.worker.prometheus.scraping import Scraped

JOB = {"queue": "mail", "kind": "send", "payload": {"to": ["ann", "bob"], "at": 1.5}}


def enqueue(http: httpx.Client, *jobs: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    response = http.post("/v1/enqueue", json={"jobs": jobs}, headers=headers)
    assert response.status_code == 200, response.text
    outcomes: list[dict[str, Any]] = response.json()
    return outcomes


def claim(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = http.post("/v1/claim", json={"worker": "w", "queues": ["mail"], "limit": 1} | fields)
    assert response.status_code == 200, response.text
    leases: list[dict[str, Any]] = response.json()
    return leases


def report(lease: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"reports": [{"job_id": lease["job"]["id"], "token": lease["token"]} | fields]}


def test_a_job_goes_through_its_life_by_json_alone(http: httpx.Client, store: MemoryStore) -> None:
    (made,) = enqueue(http, JOB)
    assert made["outcome"] == "enqueued"
    (lease,) = claim(http)
    assert lease["job"]["payload"] == JOB["payload"]
    assert lease["fence"] == lease["attempt"] == 1
    assert http.post("/v1/start", json=report(lease)).json() == [{"outcome": "started", "job_id": made["job_id"]}]
    held = {"leases": [{"job_id": made["job_id"], "token": lease["token"]}]}
    (extended,) = http.post("/v1/extend", json=held).json()
    assert extended["outcome"] == "extended"
    (acked,) = http.post("/v1/ack", json=report(lease, result={"sent": 2})).json()
    assert acked["outcome"] == "acked"
    job = http.post("/v1/get_job", json={"job_id": made["job_id"]}).json()
    assert (job["state"], job["result"]) == ("succeeded", {"sent": 2})
    kept = store.job(made["job_id"])
    assert kept is not None
    assert kept.result is not None
    assert json.loads(kept.result) == {"sent": 2}


def test_a_payload_is_kept_as_it_was_written(http: httpx.Client, store: MemoryStore) -> None:
    body = b'{"jobs": [{"id": "a", "queue": "mail", "kind": "send", "payload":  {"b": 1,  "a": [1.0, 1e3]} }]}'
    http.post("/v1/enqueue", content=body, headers={"content-type": "application/json"})
    job = store.job("a")
    assert job is not None
    assert job.spec.payload == b'{"b": 1,  "a": [1.0, 1e3]}'


def test_a_result_of_null_is_not_a_missing_result(http: httpx.Client) -> None:
    enqueue(http, {**JOB, "id": "a"}, {**JOB, "id": "b"})
    for lease, result in zip(claim(http, limit=2), ({"result": None}, {}), strict=True):
        http.post("/v1/ack", json=report(lease, **result))
    jobs = [http.post("/v1/get_job", json={"job_id": job_id}).json() for job_id in ("a", "b")]
    assert [job.get("result", "missing") for job in jobs] == [None, "missing"]


def test_a_repeated_enqueue_with_one_idempotency_key_enqueues_once(http: httpx.Client) -> None:
    first = enqueue(http, JOB, JOB, **{"Idempotency-Key": "order-7"})
    again = enqueue(http, JOB, JOB, **{"Idempotency-Key": "order-7"})
    assert [one["outcome"] for one in first + again] == ["enqueued", "enqueued", "duplicate", "duplicate"]
    assert len({one["job_id"] for one in first}) == 2
    assert [one["job_id"] for one in first] == [one["job_id"] for one in again]


def test_a_repeated_claim_with_one_idempotency_key_returns_its_leases(http: httpx.Client) -> None:
    enqueue(http, JOB, JOB)
    body = {"worker": "w", "queues": ["mail"], "limit": 1}
    first, again = (http.post("/v1/claim", json=body, headers={"Idempotency-Key": "c1"}).json() for _ in range(2))
    assert [lease["token"] for lease in first] == [lease["token"] for lease in again]


def test_a_failure_without_jitter_gets_one_from_the_server(http: httpx.Client, store: MemoryStore) -> None:
    policy = Policy(max_retries=3, backoff_base_us=10**12, backoff_cap_us=10**12)
    store.enqueue([JobSpec(f"job-{number}", "mail", "send", policy=policy) for number in range(5)])
    delays = set()
    for lease in claim(http, limit=5):
        (nacked,) = http.post("/v1/nack", json=report(lease, error="broke")).json()
        delays.add(nacked["available_at"] - lease["leased_at"])
    assert len(delays) == 5
    assert max(delays) > 1_000_000


def test_a_stale_token_is_a_conflict_that_says_why(http: httpx.Client) -> None:
    enqueue(http, JOB)
    (lease,) = claim(http)
    http.post("/v1/release", json=report(lease))
    refused = http.post("/v1/ack", json=report(lease))
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["reason"] == "lost"
    assert problem["answer"][0]["reason"] == "ended"
    assert problem["request_id"]


def test_a_batch_of_which_some_are_refused_is_answered_item_by_item(http: httpx.Client) -> None:
    enqueue(http, JOB)
    (lease,) = claim(http)
    reports = report(lease)["reports"] + [{"job_id": "nowhere", "token": "none"}]
    answered = http.post("/v1/ack", json={"reports": reports})
    assert answered.status_code == 200
    assert [one["outcome"] for one in answered.json()] == ["acked", "lost"]


def test_an_id_with_other_content_is_a_conflict(http: httpx.Client) -> None:
    enqueue(http, {**JOB, "id": "a"})
    refused = http.post("/v1/enqueue", json={"jobs": [{**JOB, "id": "a", "kind": "other"}]})
    assert (refused.status_code, refused.json()["reason"]) == (409, "conflict")


def test_an_offset_out_of_order_is_a_conflict_that_names_the_next(http: httpx.Client) -> None:
    def acquire(offset: int) -> httpx.Response:
        asked = {"queue": "stream", "lane": "A", "offset": offset, "worker": "w", "token": f"t{offset}"}
        return http.post("/v1/acquire", json={"requests": [asked]})

    assert acquire(1).json()[0]["outcome"] == "acquired"
    assert acquire(2).json()[0]["outcome"] == "backlogged"
    refused = acquire(3)
    assert refused.status_code in {200, 409}
    assert refused.json()


def test_what_is_not_there_is_not_found(http: httpx.Client) -> None:
    missing = http.post("/v1/get_job", json={"job_id": "none"})
    assert (missing.status_code, missing.json()["reason"]) == (404, "not_found")
    uncancelled = http.post("/v1/cancel", json={"job_ids": ["none"], "by": "ann", "reason": "test"})
    assert (uncancelled.status_code, uncancelled.json()["answer"][0]["outcome"]) == (404, "missing")
    assert http.post("/v1/no_such_verb", json={}).status_code == 404
    assert http.get("/nowhere").json()["reason"] == "no_such_page"


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"worker": "w", "queues": ["mail"], "limit": 0}, "limit", ">= 1"),
        ({"worker": "w", "queues": [], "limit": 1}, "queues", "length >= 1"),
        ({"worker": "w", "queues": ["mail"], "limit": 1, "wait_s": 61}, "wait_s", "<= 60"),
        ({"worker": "w", "queues": ["no name"], "limit": 1}, "queue", "[A-Za-z0-9_]"),
        ({"worker": "w", "queues": ["mail"], "limit": "1"}, "limit", "int"),
        ({"worker": "w", "queues": ["mail"]}, "limit", "limit"),
        ({"worker": "w", "queues": ["mail"], "limit": 1, "other": 1}, "other", "other"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_may_be(
    http: httpx.Client, body: dict[str, Any], field: str | None, words: str
) -> None:
    refused = http.post("/v1/claim", json=body)
    assert refused.status_code == 422
    problem = refused.json()
    assert problem.get("field") == field
    assert words in problem["limit"]


@pytest.mark.parametrize(
    "content", [b"{", b"", b"\xff\xfe", b'{"jobs": NaN}', b'{"jobs":[{"payload":' + b"[" * 100_000]
)
def test_what_is_not_json_is_a_bad_request(http: httpx.Client, content: bytes) -> None:
    refused = http.post("/v1/enqueue", content=content, headers={"content-type": "application/json"})
    assert refused.status_code == (422 if content == b"" else 400)
    assert refused.headers["content-type"] == "application/problem+json"


def test_only_json_by_post_is_taken(http: httpx.Client) -> None:
    assert http.post("/v1/enqueue", content=b"{}").status_code == 415
    form = http.post("/v1/enqueue", data={"jobs": "1"})
    assert (form.status_code, form.json()["reason"]) == (415, "content_type")
    read = http.get("/v1/enqueue")
    assert (read.status_code, read.headers["allow"]) == (405, "POST")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(http: httpx.Client, server: ServerThread) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = "POST /v1/enqueue HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {10**12}\r\n\r\n".encode())
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("error", "reason", "retry_after"), [(Unavailable("away"), "unavailable", "1"), (Broken("torn"), "broken", None)]
)
def test_a_store_that_cannot_answer_is_unavailable_and_shows_no_trace(
    http: httpx.Client,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
    retry_after: str | None,
) -> None:
    async def fail(_store: Store, _command: object) -> None:
        raise error

    monkeypatch.setattr(MemoryStore, "arun", fail)
    away = http.post("/v1/get_totals", json={}, headers={"X-Request-Id": "r-1"})
    assert (away.status_code, away.json()["reason"], away.json()["request_id"]) == (503, reason, "r-1")
    assert away.headers.get("retry-after") == retry_after
    assert "Traceback" not in away.text
    assert http.get("/readyz").status_code == 503
    assert http.get("/healthz").status_code == 200


def test_the_records_of_workers_elsewhere_are_kept_with_the_others(http: httpx.Client, store: MemoryStore) -> None:
    store.presence.publish("here", b'{"a":1}')
    store.presence.publish("of another version", b"\xff")
    assert http.post("/v1/publish_presence", json={"worker_id": "there", "record": {"b": 2}}).json() is None
    listed = http.post("/v1/list_presence", json={}).json()
    assert [(one["worker_id"], one["record"]) for one in listed] == [("here", {"a": 1}), ("there", {"b": 2})]
    assert http.post("/v1/remove_presence", json={"worker_id": "there"}).json() is True
    assert http.post("/v1/remove_presence", json={"worker_id": "there"}).json() is False


def test_the_figures_count_requests_and_jobs(http: httpx.Client) -> None:
    enqueue(http, JOB)
    http.post("/v1/claim", json={})
    found = Scraped(http.get("/metrics").text)
    assert found("leasemill_server_requests_total", status="200", verb="enqueue") == 1
    assert found("leasemill_server_requests_total", status="422", verb="claim") == 1
    assert found("leasemill_server_request_seconds_bucket", le="+Inf", verb="enqueue") == 1
    assert found("leasemill_server_request_seconds_count", verb="enqueue") == 1
    assert found("leasemill_server_jobs", queue="mail", state="ready") == 1
    assert found.has("leasemill_server_open_polls")


def test_the_reference_names_every_command_and_the_bounds_of_its_fields(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert {route.path for route in ROUTES} <= set(document["paths"])
    fields = document["components"]["schemas"]["JobSpecRequest"]["properties"]
    assert (fields["priority"]["minimum"], fields["priority"]["maximum"]) == (0, 9)
    outcomes = document["paths"]["/v1/ack"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert set(outcomes["items"]["discriminator"]["mapping"]) == {"acked", "lost"}


def test_the_states_of_jobs_are_words(http: httpx.Client) -> None:
    enqueue(http, JOB)
    (queue,) = http.post("/v1/list_queues", json={"limit": 10}).json()
    assert queue["counts"] == {state.value: int(state is JobState.READY) for state in JobState}
