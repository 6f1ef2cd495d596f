"""The authorizer with keys: what it looks up, what it remembers, and what it frees when a request is over."""

from __future__ import annotations

import resource
from typing import Any

import pytest

from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec
from leasemill.server import key_authorizer
from leasemill.server import security as module
from leasemill.server.authorizer import RequestHead
from leasemill.server.key_authorizer import KeyAuthorizer
from leasemill.server.limits import ServerLimits
from leasemill.server.security import OPEN_PATHS, secured
from leasemill.store.access_keys import new_key
from leasemill.store.memory import MemoryStore
from leasemill.wire import requests as r
from leasemill.wire.problems import Denied
from leasemill.wire.routes import BY_COMMAND, Role


class Gated:
    """An authorizer over a store in memory, and every command that reached the store."""

    def __init__(self, *queues: str, limits: ServerLimits | None = None) -> None:
        self.store = MemoryStore()
        key, self.text = new_key(name="ci", roles=Role, now=1, by="ada", queues=queues)
        self.store.keys.add(key)
        self.authorizer: KeyAuthorizer = secured(self.store, "127.0.0.1", requires_keys=True, limits=limits).authorizer
        self.ran: list[type] = []

    def head(self, command: type, **headers: str) -> RequestHead:
        route = BY_COMMAND[command]
        sent = {"host": "localhost", "authorization": f"Bearer {self.text}", **headers}
        return RequestHead("POST", route.path, sent, "127.0.0.1", route)

    async def perform(self, command: c.Command[Any]) -> Any:
        admission = await self.authorizer.admit(self.head(type(command)))
        try:
            return await self.authorizer.perform(admission, BY_COMMAND[type(command)], command, self._run)
        finally:
            self.authorizer.left(admission)

    async def _run(self, command: c.Command[Any]) -> Any:
        self.ran.append(type(command))
        return await self.store.arun(command)


async def test_a_key_for_all_queues_costs_no_look_up() -> None:
    gated = Gated("*")
    gated.store.enqueue([JobSpec("one", "q", "k")])
    (lease,) = await gated.perform(c.Claim("w", ["q"], 1, ["t"], "r"))
    await gated.perform(c.Ack([c.AckReport("one", lease.token)]))
    assert gated.ran == [c.Claim, c.Ack]


async def test_a_key_for_some_queues_looks_up_nothing_for_reports_on_what_it_claimed_here() -> None:
    gated = Gated("q")
    gated.store.enqueue([JobSpec("one", "q", "k")])
    (lease,) = await gated.perform(c.Claim("w", ["q"], 1, ["t"], "r"))
    await gated.perform(c.Extend([c.LeaseRef("one", lease.token)]))
    await gated.perform(c.Ack([c.AckReport("one", lease.token)]))
    assert gated.ran == [c.Claim, c.Extend, c.Ack]


async def test_the_id_of_a_purged_job_that_is_another_s_now_is_not_taken_for_the_old_one() -> None:
    gated = Gated("q")
    gated.store.enqueue([JobSpec("one", "q", "k")])
    (lease,) = await gated.perform(c.Claim("w", ["q"], 1, ["t"], "r"))
    await gated.perform(c.Ack([c.AckReport("one", lease.token)]))
    gated.store.purge(c.JobFilter(job_ids=("one",)), by="ada", reason="because")
    gated.store.enqueue([JobSpec("one", "other", "k", b'"secret"')])
    for command in (c.GetJob("one"), c.Cancel(["one"], "x", "y"), r.WatchEnd("one")):
        with pytest.raises(Denied) as denied:
            await gated.perform(command)
        assert denied.value.problem.status == 403
    with pytest.raises(Denied):
        await gated.perform(c.Ack([c.AckReport("one", lease.token)]))


async def test_many_jobs_are_looked_up_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_authorizer, "AT_ONCE", 10)
    gated = Gated("q")
    gated.store.enqueue([JobSpec(f"job-{number}", "q", "k") for number in range(25)])
    ids = [f"job-{number}" for number in range(25)]
    outcomes = await gated.perform(c.Cancel([*ids, "nobody", *ids[:3]], "x", "y"))
    assert len(outcomes) == 29
    assert gated.ran.count(c.ListJobs) == 3


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_authorizer, "QUEUES_KNOWN", 5)
    gated = Gated("q")
    gated.store.enqueue([JobSpec(f"job-{number}", "q", "k") for number in range(20)])
    await gated.perform(c.Claim("w", ["q"], 20, [f"t{number}" for number in range(20)], "r"))
    assert len(gated.authorizer._queues) == 5


async def test_places_are_given_back_whatever_became_of_a_request() -> None:
    gated = Gated("q", limits=ServerLimits(open_requests=1, open_polls=1))
    for _ in range(3):
        with pytest.raises(Denied) as denied:
            await gated.perform(c.Claim("w", ["other"], 1, ["t"], "r"))
        assert denied.value.problem.status == 403
        assert await gated.perform(c.Claim("w", ["q"], 1, ["t"], "r")) == []
    admission = await gated.authorizer.admit(gated.head(c.GetTime))
    with pytest.raises(Denied) as denied:
        await gated.authorizer.admit(gated.head(c.GetTime))
    assert denied.value.problem.status == 429
    gated.authorizer.left(admission)
    gated.authorizer.left(await gated.authorizer.admit(gated.head(c.GetTime)))


async def test_a_body_that_announces_no_length_is_taken_for_the_largest() -> None:
    gated = Gated("q", limits=ServerLimits(body_bytes=100, bodies_bytes=150))
    admission = await gated.authorizer.admit(gated.head(c.GetTime, **{"transfer-encoding": "chunked"}))
    assert (admission.reserved, admission.body_bytes) == (100, 100)
    with pytest.raises(Denied) as denied:
        await gated.authorizer.admit(gated.head(c.GetTime, **{"content-length": "9999"}))
    assert denied.value.problem.status == 503
    gated.authorizer.left(await gated.authorizer.admit(gated.head(c.GetTime, **{"content-length": "50"})))
    gated.authorizer.left(admission)


@pytest.mark.parametrize(
    "body", [{"transfer-encoding": "chunked"}, {"content-length": "100"}], ids=["chunks", "a length"]
)
async def test_whoever_has_no_key_sets_nothing_aside_for_a_body(body: dict[str, str]) -> None:
    """Neither where no key is needed nor where it is missing or unknown: a few requests would shut out all others."""
    gated = Gated("q", limits=ServerLimits(body_bytes=100, bodies_bytes=100))
    host = {"host": "localhost"}
    admissions = [
        await gated.authorizer.admit(RequestHead("GET", path, {**host, **body}, "127.0.0.1", None))
        for path in OPEN_PATHS
    ]
    time = BY_COMMAND[c.GetTime]
    for route, path in ((time, time.path), (None, "/v1/unknown"), (None, "/metrics"), (None, "/openapi.json")):
        for sent in (host, {**host, "authorization": "Bearer lm_unknown"}):
            with pytest.raises(Denied) as denied:
                await gated.authorizer.admit(RequestHead("POST", path, {**sent, **body}, "127.0.0.1", route))
            assert denied.value.problem.status == 401
    gated.authorizer.left(await gated.authorizer.admit(gated.head(c.GetTime, **{"content-length": "100"})))
    assert [one.reserved for one in admissions] == [0] * len(OPEN_PATHS)
    for one in admissions:
        gated.authorizer.left(one)


@pytest.mark.parametrize(("soft", "hard", "most", "asked"), [
    (100_000, 100_000, 4_000, None),
    (1_024, 100_000, 4_000, 4_200),
    (1_024, 2_048, 1_848, 2_048),
    (-1, -1, 4_000, None),
    (1_024, -1, 4_000, 4_200),
])  # fmt: skip
def test_there_are_no_more_connections_than_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, asked: int | None
) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits[0]))
    assert module.affordable(4_000) == most
    assert set_to == ([] if asked is None else [asked])


@pytest.mark.parametrize(
    ("path", "is_admitted"),
    [("/openapi.json", True), ("/v1/nothing", True), ("/healthz", True), ("/metrics", False), ("/dashboard", False)],
)
async def test_a_key_for_some_queues_sees_what_shows_nothing_of_the_store(path: str, is_admitted: bool) -> None:
    gated = Gated("mail")
    head = RequestHead("GET", path, {"host": "localhost", "authorization": f"Bearer {gated.text}"}, "127.0.0.1", None)
    if is_admitted:
        gated.authorizer.left(await gated.authorizer.admit(head))
        return
    with pytest.raises(Denied) as denied:
        await gated.authorizer.admit(head)
    assert denied.value.problem.status == 403
