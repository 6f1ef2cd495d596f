"""A queue has a page of its own: what is in it, how fast it moves, what is set for it and who serves it."""

from __future__ import annotations

import pytest

from leasemill.dashboard import ViewerRole
from leasemill.kernel import commands as c
from leasemill.kernel.model import JobSpec, LimitTerms, OnFailure, Policy
from leasemill.store.base import Store
from leasemill.store.memory import MemoryStore
from leasemill.testing.clock import ManualClock
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.filling import Filled
from tests.dashboard.markup import Markup


def facts(page: Markup) -> dict[str, str]:
    """Names and values of the list of facts."""
    names, values = page.find("dt"), page.elements
    return {
        name.text: next(one.text for one in values[values.index(name) :] if one.tag == "dd").strip() for name in names
    }


def tiles(page: Markup) -> dict[str, str]:
    found = [one.text.split() for one in page.elements if "tile" in one.attributes.get("class", "").split()]
    return dict(found)


def hrefs(page: Markup) -> set[str]:
    return {one.attributes["href"] for one in page.find("a")}


def test_a_queue_shows_its_jobs_by_state_and_leads_to_them(desk: Desk, filled: Filled, store: Store) -> None:
    page = desk.get("/queue?name=mail")
    assert page.find("h1")[0].text == "mail"
    assert tiles(page) == {
        "Waiting": "3",
        "Running": "0",
        "Failed": "1",
        "Quarantined": "0",
        "Done": "1",
        "Cancelled": "1",
    }
    assert {"/jobs?queue=mail&state=failed", "/jobs?queue=mail", "/lanes?queue=mail", "/leases?queue=mail"} <= hrefs(
        page
    )


def test_a_queue_shows_what_is_set_for_it(desk: Desk, filled: Filled, store: Store) -> None:
    before = facts(desk.get("/queue?name=mail"))
    assert (before["Limit"], before["Policy"]) == ("none", "as the code declares")
    store.set_limit("queue:mail", LimitTerms(places=7), by="ann", reason="the gateway is slow")
    store.set_policy("mail", Policy(max_retries=2, on_failure=OnFailure.BLOCK), by="ann", reason="in order")
    store.pause("mail", by="ann", reason="the gateway is down")
    page = desk.get("/queue?name=mail")
    after = facts(page)
    assert after["Limit"].startswith("0/7set by ann, ")
    assert "the gateway is slow" in after["Limit"]
    assert after["Policy"].split() == ["max", "retries", "2", "on", "failure", "block"]
    assert "Paused: workers claim none of its jobs" in page.text
    assert {"/limits?name=queue%3Amail", "/audit?target=mail"} <= hrefs(page)


def test_a_queue_is_paused_limited_and_resumed_on_its_page(desk: Desk, filled: Filled, store: Store) -> None:
    for name, sentence in (("pause-queue", "Resume"), ("resume-queue", "Pause")):
        buttons = {one.text: one.attributes["href"] for one in desk.get("/queue?name=mail").find("a", data_act="")}
        path = next(href for href in buttons.values() if href.startswith(f"/acts/{name}?"))
        desk.act(path)
        assert sentence in {one.text for one in desk.get("/queue?name=mail").find("a", data_act="")}
    buttons = {one.text: one.attributes["href"] for one in desk.get("/queue?name=mail").find("a", data_act="")}
    desk.act(buttons["Set limit"], places="3")
    assert facts(desk.get("/queue?name=mail"))["Limit"].startswith("0/3")


def test_a_queue_lists_the_workers_that_serve_it(desk: Desk, filled: Filled) -> None:
    assert desk.get("/queue?name=mail").rows() == ["worker plain text"]
    assert "No worker serves it." in desk.get("/queue?name=zombies").text


def test_a_queue_that_does_not_exist_is_not_found(desk: Desk) -> None:
    assert "there is no queue 'nobody'" in desk.get("/queue?name=nobody", 404).text
    assert "No queue is named" in desk.get("/queue", 404).text


def test_a_queue_is_linked_from_the_table_and_the_palette(desk: Desk, filled: Filled) -> None:
    page = desk.get("/queues")
    links = page.find("a", href="/queue?name=mail")
    assert {one.attributes.get("data-group", "table") for one in links} == {"table", "Queue"}
    assert "/queue?name=mail" in hrefs(desk.get(f"/job?id={filled.ready}"))


def test_somebody_who_may_look_sees_no_buttons(memory: Store) -> None:
    memory.enqueue([JobSpec("one", "mail", "send")])
    desk = desk_on(memory, ViewerRole.READ)
    assert desk.get("/queue?name=mail").find("a", data_act="") == []
    desk.dashboard.close()


def test_rates_are_of_new_jobs_and_of_those_that_ended() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        desk = desk_on(store)
        store.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(10)])
        desk.dashboard.open().sample()
        clock.advance(s=10)
        store.enqueue([JobSpec(f"more-{number}", "mail", "send") for number in range(20)])
        store.ack([c.AckReport(one.job.id, one.token) for one in store.claim("worker", ["mail"], 5)])
        found = facts(desk.get("/queue?name=mail"))
        assert (found["In"], found["Out"]) == ("2 /s", "0.50 /s")
        assert found["Oldest due"].startswith("10.0 s since ")
        desk.dashboard.close()


def test_an_acquire_queue_needs_no_worker(memory: Store) -> None:
    memory.acquire([c.AcquireRequest("stream", "a", 0, "worker", "token-1")])
    desk = desk_on(memory)
    assert "held through a WorkLease" in desk.get("/queue?name=stream").text
    desk.dashboard.close()


@pytest.mark.parametrize("path", ["/leases", "/job?id=leased-1"])
def test_the_last_digits_of_a_token_are_there_at_every_width(
    desk: Desk, filled: Filled, store: Store, path: str
) -> None:
    """Columns that narrow windows leave out are repeated in a second line, which wide ones leave out."""
    (held,) = store.leases()
    page = desk.get(path)
    second = [one.text for one in page.elements if one.attributes.get("class") in {"folded", "under"}]
    assert any(f"…{held.token[-6:]}" in text for text in second)


def test_a_lease_that_was_extended_shows_it_on_the_page_of_its_job() -> None:
    clock = ManualClock()
    with MemoryStore(clock) as store:
        desk = desk_on(store)
        store.enqueue([JobSpec("one", "mail", "send")])
        (held,) = store.claim("worker", ["mail"], 1)
        assert "extended" not in folded(desk.get("/job?id=one"))
        clock.advance(s=6)
        store.extend([c.LeaseRef("one", held.token)])
        assert "extended 6.0 s" in folded(desk.get("/job?id=one"))
        assert f"token …{held.token[-6:]}, extended 6.0 s" in folded(desk.get("/leases"))
        desk.dashboard.close()


def folded(page: Markup) -> str:
    return " ".join(one.text for one in page.elements if one.attributes.get("class") == "folded")
