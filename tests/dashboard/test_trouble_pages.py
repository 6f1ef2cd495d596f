"""Leases, workers, failures, refusals and lanes show what the store holds, on every store."""

from __future__ import annotations

import pytest

from leasemill.dashboard import ViewerRole
from leasemill.dashboard.page_cache import KEPT, PageCache
from leasemill.dashboard.pages.failures import find_failures
from leasemill.dashboard.pages.lanes import find_lanes, ranges, status_of
from leasemill.dashboard.pages.leases import PAGE_SIZE, Risk, judged
from leasemill.dashboard.pages.refusals import ATTEMPTED, NEWEST, WHY, find_refusals, would_have
from leasemill.dashboard.sampler import Worked
from leasemill.kernel import commands as c
from leasemill.kernel.commands import REPORTS
from leasemill.kernel.model import REDRIVEN_STATES, SECOND, Job, JobSpec, LossReason, Policy, Refusal, ReportVerb, Verb
from leasemill.operator.fingerprint import fingerprint
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.store.worker_records import WorkerRecord, encode_record
from leasemill.testing.clock import ManualClock
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.filling import BLOCKING, Filled, fill
from tests.dashboard.filling_control import fill_control
from tests.dashboard.markup import Markup


def record(worker: str, interval_s: float = 1.0) -> WorkerRecord:
    return WorkerRecord(worker, "host", 1, 0.0, 0.0, interval_s, {"mail": 1}, 4, False, [], {})


def tiles(page: Markup) -> dict[str, str]:
    found = [one for one in page.elements if "tile" in one.attributes.get("class", "").split()]
    return {one.text.strip().split("\n")[0].strip(): one.text.strip().split("\n")[1].strip() for one in found}


def row(page: Markup, key: str) -> str:
    (found,) = [one for one in page.find("tr") if one.attributes.get("data-key") == key]
    return " ".join(found.text.split())


def hrefs(page: Markup) -> set[str]:
    return {one.attributes["href"] for one in page.find("a") if "href" in one.attributes}


# Leases ----------------------------------------------------------------------------------------------------------


def test_a_lease_is_shown_with_its_job_its_worker_and_no_token(desk: Desk, filled: Filled, store: Store) -> None:
    (held,) = store.leases()
    page = desk.get("/leases")
    assert filled.leased in row(page, str(held.fence))
    assert f"/job?id={filled.leased}" in hrefs(page)
    assert "/workers?worker=worker+plain+text" in hrefs(page)
    assert f"…{held.token[-6:]}" in page.text
    assert held.token not in page.text
    (countdown,) = [one for one in page.find("time") if "data-left-us" in one.attributes]
    assert 0 < int(countdown.attributes["data-left-us"]) <= 30 * SECOND
    assert tiles(page)["At risk"] == "0"


def test_leases_are_narrowed_to_a_worker_a_queue_and_those_at_risk(desk: Desk, filled: Filled, store: Store) -> None:
    store.enqueue([JobSpec("lost-1", "lost", "send")])
    store.claim("silent", ["lost"], 1)
    fences = {one.job_id: str(one.fence) for one in store.leases()}
    assert desk.get("/leases").rows() == [fences["lost-1"], fences["leased-1"]]
    assert desk.get("/leases?only=risk").rows() == [fences["lost-1"]]
    assert desk.get("/leases?worker=silent").rows() == [fences["lost-1"]]
    assert desk.get("/leases?queue=leased").rows() == [fences["leased-1"]]
    assert "no record" in row(desk.get("/leases"), fences["lost-1"])


def test_leases_at_risk_come_first() -> None:
    def lease(fence: int, worker: str, expires_at: int) -> c.LeaseView:
        return c.LeaseView(f"job-{fence}", "mail", "send", 1, fence, "token", worker, 0, expires_at, None)

    now = 100 * SECOND
    workers = [Worked(record("up"), 0.5), Worked(record("down"), 60.0)]
    held = [
        lease(1, "up", now + 20 * SECOND),
        lease(2, "nobody", now + 50 * SECOND),
        lease(3, "down", now + 90 * SECOND),
        lease(4, "up", now - SECOND),
        lease(5, "up", now + 10 * SECOND),
    ]
    rows = sorted(judged(held, workers, now), key=lambda one: one.order)
    assert [(one.view.fence, one.risk) for one in rows] == [
        (4, Risk.EXPIRED),
        (3, Risk.NO_HEARTBEAT),
        (2, Risk.NO_RECORD),
        (5, Risk.NONE),
        (1, Risk.NONE),
    ]


def test_an_extended_lease_says_how_far_it_was_carried() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        store.enqueue([JobSpec("long-1", "mail", "send", policy=Policy(lease_ttl_us=30 * SECOND))])
        (lease,) = store.claim("worker", ["mail"], 1)
        desk = desk_on(store)
        assert "20.0 s" not in row(desk.get("/leases"), str(lease.fence))
        clock.advance(s=20)
        store.extend([c.LeaseRef("long-1", lease.token)])
        assert "20.0 s" in row(desk.get("/leases"), str(lease.fence))
        clock.advance(s=31)
        page = desk.get("/leases")
        assert "expired" in row(page, str(lease.fence))
        assert tiles(page)["Next to expire"] == "overdue"
        desk.dashboard.close()


def test_many_leases_are_shown_in_pages(desk: Desk, store: Store) -> None:
    store.enqueue([JobSpec(f"job-{number:03}", "mail", "send") for number in range(150)])
    store.claim("busy", ["mail"], 150)
    first = desk.get("/leases")
    (following,) = [one.attributes["href"] for one in first.find("a", rel="next")]
    second = desk.get(following)
    assert (len(first.rows()), len(second.rows())) == (PAGE_SIZE, 50)
    assert not set(first.rows()) & set(second.rows())
    assert second.find("a", rel="next") == []


def test_leases_without_an_end_are_counted(desk: Desk, store: Store) -> None:
    store.acquire([c.AcquireRequest("shards", "a", 0, "worker", "token-1")])
    assert "held without an end and not listed" in desk.get("/leases").text


# Workers ---------------------------------------------------------------------------------------------------------


def test_workers_are_shown_with_their_slots_and_what_they_run(desk: Desk, filled: Filled, store: Store) -> None:
    fill_control(store)
    page = desk.get("/workers")
    assert page.rows()[:2] == ["stuck plain text", "worker plain text"]
    assert "1/4" in row(page, "worker plain text")
    assert "1/3" in row(page, f"worker plain text {filled.leased} 1")
    assert "stuck" in row(page, "stuck plain text stuck-1 2")
    assert (tiles(page)["Up"], tiles(page)["Slots taken"], tiles(page)["Stuck slots"]) == ("2", "2 of 5", "1")


def test_a_worker_has_a_page_of_its_own(desk: Desk, filled: Filled, store: Store) -> None:
    fill_control(store)
    page = desk.get("/workers?worker=stuck+plain+text")
    assert page.find("h1")[0].text == "stuck plain text"
    for text in (
        "host plain text",
        "1.2 plain text",
        "one of 3 processes of supervisor plain text",
        "stopping",
        "1 stuck",
        "2 times",
    ):
        assert text in page.text
    assert page.rows() == ["stuck plain text stuck-1 2"]
    assert "No worker of this name" in desk.get("/workers?worker=nobody").text


def test_a_worker_without_a_heartbeat_comes_first(memory: Store) -> None:
    desk = desk_on(memory)
    memory.presence.publish("b", encode_record(record("b")))
    memory.presence.publish("a-stale", encode_record(record("a-stale", interval_s=-1.0)))
    page = desk.get("/workers")
    assert page.rows() == ["a-stale", "b"]
    assert "no heartbeat" in row(page, "a-stale")
    desk.dashboard.close()


# Failures --------------------------------------------------------------------------------------------------------


def fail(store: Store, count: int, error: str, queue: str = "mail", kind: str = "send") -> list[str]:
    ids = [f"{queue}-{kind}-{error[:3]}-{number:04}" for number in range(count)]
    store.enqueue([JobSpec(job_id, queue, kind) for job_id in ids])
    for lease in store.claim("worker", [queue], count):
        number = int(lease.job.id[-4:])
        store.nack([c.NackReport(lease.job.id, lease.token, error.format(number), is_permanent=True)])
    return ids


def test_failures_are_grouped_by_cause(desk: Desk, store: Store) -> None:
    timeouts = fail(store, 5, "Timeout: after {} s")
    (other,) = fail(store, 1, "KeyError: 'a'", queue="paper")
    page = desk.get("/failures")
    prints = {job_id: fingerprint(found) for job_id in (*timeouts, other) if (found := store.job(job_id))}
    assert page.rows() == [prints[timeouts[0]], prints[other]]
    assert "Timeout: after <n> s" in row(page, page.rows()[0])
    assert tiles(page)["Failed"] == "6"
    assert tiles(page)["Causes"] == "2"
    assert "All 6 failed jobs grouped." in page.text
    assert desk.get("/failures?queue=paper").rows() == [prints[other]]
    assert desk.get("/failures?kind=nothing").rows() == []
    (link,) = [href for href in hrefs(page) if href.startswith("/jobs") and prints[timeouts[0]] in href]
    assert set(desk.get(link).rows()) == set(timeouts)


def test_of_many_failures_the_newest_are_grouped_and_the_page_says_so(store: Store) -> None:
    fail(store, 600, "Timeout: after {} s")
    where = c.JobFilter(states=REDRIVEN_STATES)
    found = find_failures(store, where, for_s=0.0)
    assert (found.jobs, found.is_all) == (500, False)
    assert find_failures(store, where, for_s=60.0).jobs == 600


# Refusals --------------------------------------------------------------------------------------------------------


def test_a_refused_report_is_shown_with_what_it_tried(desk: Desk, filled: Filled, store: Store) -> None:
    job = store.job(filled.zombie)
    assert job is not None
    token = job.refusals[0].token
    page = desk.get("/refusals")
    (key,) = page.rows()
    line = row(page, key)
    assert filled.zombie in line
    assert "It tried to end the job as succeeded, but an operator had cancelled the job." in line
    assert "A cancelled job would have taken effect." in line
    assert f"…{token[-6:]}" in line
    assert token not in page.text
    assert "A sample" in page.text
    assert desk.get("/refusals?verb=ack").rows() == [key]
    assert desk.get("/refusals?verb=nack").rows() == []
    assert desk.get("/refusals?worker=worker+plain+text").rows() == [key]
    assert desk.get("/refusals?worker=another").rows() == []


def test_refusals_are_found_among_held_failed_and_new_jobs_within_bounds() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        store.enqueue([JobSpec("held", "a", "send")])
        (late,) = store.claim("late", ["a"], 1)
        clock.advance(s=31)
        store.expire()
        store.claim("next", ["a"], 1)
        store.ack([c.AckReport("held", late.token)])
        store.enqueue([JobSpec(f"new-{number:04}", "b", "send") for number in range(1_500)])
        store.enqueue([JobSpec(f"newer-{number:04}", "b", "send") for number in range(NEWEST)])
        found = find_refusals(store, for_s=60.0)
        (one,) = found.rows
        assert (one.job.spec.id, one.refusal.worker, one.holder) == ("held", "late", "next")
        assert one.why == "a later attempt had the job"
        assert found.jobs == NEWEST + 1
        assert not found.is_short
        assert find_refusals(store, for_s=0.0).is_short


def test_a_refusal_is_found_when_its_job_and_many_later_ones_are_over() -> None:
    with MemoryStore(ManualClock()) as store:
        store.enqueue([JobSpec(f"job-{number:04}", "a", "send") for number in range(2_000)])
        (first,) = store.claim("late", ["a"], 1)
        store.cancel([first.job.id], by="ann", reason="test")
        store.ack([c.AckReport(first.job.id, first.token)])
        while leases := store.claim("worker", ["a"], 500):
            store.ack([c.AckReport(one.job.id, one.token) for one in leases])
        (row,) = find_refusals(store, for_s=60.0).rows
        assert row.job.spec.id == first.job.id


def refused(verb: ReportVerb, reason: LossReason = LossReason.SUPERSEDED) -> str:
    job = Job(JobSpec("one", "mail", "send"), 1, 0, 0, 0)
    return would_have(job, Refusal(verb, "token", "worker", 1, 2, reason, 0))


def test_what_a_report_would_have_done_depends_on_what_became_of_the_job(store: Store) -> None:
    assert refused(Verb.EXTEND) == "Two workers could have run it at once."
    assert refused(Verb.EXTEND, LossReason.CANCELLED) == "A cancelled job would have gone on."
    assert refused(Verb.ACK) == "An attempt that had lost the job would have ended it."
    assert refused(Verb.NACK) == "A job that it had lost would have been failed or retried."
    assert refused(Verb.RELEASE, LossReason.CANCELLED) == "A cancelled job would have been queued again."
    store.enqueue([JobSpec("twice", "mail", "send")])
    (lease,) = store.claim("worker", ["mail"], 1)
    store.ack([c.AckReport("twice", lease.token)])
    job = store.job("twice")
    assert job is not None
    late = Refusal(Verb.COMMIT, "token", "late", 0, 1, LossReason.SUPERSEDED, 0)
    assert would_have(job, late) == "Its effects would have happened twice."


def test_every_reason_has_words() -> None:
    assert set(WHY) == set(LossReason)
    assert set(ATTEMPTED) == set(REPORTS.values())


# Lanes -----------------------------------------------------------------------------------------------------------


def test_a_blocked_lane_comes_first_and_says_what_blocks_it(desk: Desk, filled: Filled, store: Store) -> None:
    store.enqueue([JobSpec(f"long-{number}", "paper", "send", lane="long") for number in range(5)])
    page = desk.get("/lanes")
    assert page.rows() == ["lanes lane plain text", "paper long"]
    blocked = row(page, "lanes lane plain text")
    assert "head-1" in blocked
    assert "failed" in blocked
    assert "OSError: plain text" in blocked
    assert "Unblock" in blocked
    assert "Unblock" not in row(page, "paper long")
    assert desk.get("/lanes?only=blocked").rows() == ["lanes lane plain text"]
    assert desk.get("/lanes?queue=paper").rows() == ["paper long"]
    assert (tiles(page)["Blocked"], tiles(page)["Longest"]) == ("1", "4 waiting")


def test_a_lane_has_a_page_of_its_own(desk: Desk, filled: Filled) -> None:
    page = desk.get("/lanes?queue=lanes&lane=lane+plain+text")
    assert "blocked until an operator acts" in page.text
    assert page.rows() == [filled.behind]
    assert "OSError: plain text" in page.text
    assert "has no work" in desk.get("/lanes?queue=lanes&lane=nobody", 404).text


def test_lanes_are_read_up_to_a_bound_blocked_ones_first(store: Store) -> None:
    specs = [
        JobSpec(f"job-{number}", "mail", "send", lane=f"lane-{number:03}", policy=BLOCKING) for number in range(250)
    ]
    store.enqueue(specs)
    leases = store.claim("worker", ["mail"], 250)
    last = next(one for one in leases if one.job.id == "job-249")
    store.nack([c.NackReport("job-249", last.token, "OSError: away", is_permanent=True)])
    store.enqueue([JobSpec("behind", "mail", "send", lane="lane-249", policy=BLOCKING)])
    found = find_lanes(store, ["mail"], for_s=60.0)
    assert (len(found.lanes), found.is_all) == (250, True)
    assert (found.lanes[0].lane, found.lanes[0].is_blocked) == ("lane-249", True)
    assert not find_lanes(store, ["mail"], for_s=-1.0).is_all


def test_the_status_of_a_lane_is_that_of_its_head(store: Store) -> None:
    assert status_of(None, 0).words == "no head"
    job = Job(JobSpec("one", "mail", "send", lane="a"), 1, 0, 100, 0)
    assert status_of(job, 50).words == "not due"
    assert status_of(job, 150).words == "due"
    store.enqueue([JobSpec("one", "mail", "send", lane="a")])
    (lease,) = store.claim("worker", ["mail"], 1)
    running = store.job("one")
    assert running is not None
    assert (status_of(running, store.time()).words, status_of(running, 0).worker) == ("running", "worker")
    store.nack([c.NackReport("one", lease.token, "x", delay_us=3_600 * SECOND)])
    retried = store.job("one")
    assert status_of(retried, store.time()).words == "retry"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], ""),
        ([(0, 7), (9, 9)], "0 to 7, 9"),
        ([(2 * n, 2 * n) for n in range(12)], "… 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 (12 ranges)"),
    ],
)
def test_offsets_are_written_as_ranges(found: list[tuple[int, int]], text: str) -> None:
    assert ranges(found) == text


# What is read once -----------------------------------------------------------------------------------------------


def test_a_reading_is_made_once_for_a_sample() -> None:
    cache = PageCache()
    made: list[int] = []

    def read() -> int:
        made.append(1)
        return len(made)

    assert [cache.once("a", 1, read), cache.once("a", 1, read), cache.once("b", 1, read)] == [1, 1, 2]
    assert cache.once("a", 2, read) == 3
    cache.forget()
    assert cache.once("a", 2, read) == 4
    for number in range(KEPT):
        cache.once(number, 2, read)
    assert cache.once("a", 2, read) == len(made) == 5 + KEPT


def test_a_viewer_who_may_only_look_sees_no_buttons(memory: Store) -> None:
    fill(memory)
    fill_control(memory)
    desk = desk_on(memory, ViewerRole.READ)
    paths = ["/leases", "/workers", "/failures", "/refusals", "/lanes", "/schedules", "/groups", "/limits", "/audit"]
    paths += ["/lanes?queue=lanes&lane=lane+plain+text", "/schedules?name=report", "/groups?id=group+plain+text"]
    for path in [*paths, "/limits?name=mails"]:
        page = desk.get(path)
        assert [one for one in page.elements if "data-act" in one.attributes] == [], path
        assert not [href for href in hrefs(page) if href.startswith("/acts")], path
    desk.dashboard.close()


def test_the_longest_lane_of_a_sample_is_shown_with_the_size_of_the_sample(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("one", "two"):
        memory.enqueue([JobSpec(queue, queue, "send", lane="lane")])
    desk = desk_on(memory)
    assert "lanes read" not in desk.get("/lanes").text
    monkeypatch.setattr("leasemill.dashboard.pages.lanes.MOST", 1)
    assert "of the 1 lanes read" in desk.get("/lanes").text
    desk.dashboard.close()
