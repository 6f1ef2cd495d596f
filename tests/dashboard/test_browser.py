"""A short look through a real browser; `make browser` looks at every page in every size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from leasemill.kernel.model import JobSpec, JobState
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.dashboard.browser.serving import CHROMIUM, NO_CHROMIUM, PATIENCE_MS, serving, signed_in, working
from tests.dashboard.filling import fill

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=NO_CHROMIUM)
HIDE = """
    Object.defineProperty(document, 'hidden', {value: %s, configurable: true});
    document.dispatchEvent(new Event('visibilitychange'));
"""
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:") as opened:
        fill(opened)
        yield opened


def test_a_page_follows_the_store(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/jobs?queue=mail")
        expect(page.locator("[data-live-status]")).to_have_text("live")
        page.locator('input[value="ready-1"]').check()
        store.enqueue([JobSpec("arrived-later", "mail", "send")])
        expect(page.locator("tbody tr").first).to_have_attribute("data-key", "arrived-later")
        assert page.locator('input[value="ready-1"]').is_checked()
        assert not page.locator('input[value="arrived-later"]').is_checked()
        observed.check(page)


def test_a_page_stays_live_when_its_stream_ends(
    browser: Browser, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasemill.dashboard.live.OPEN_S", 0.2)
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/jobs?queue=mail")
        for number in range(3):
            with page.expect_request("**/events"):
                store.enqueue([JobSpec(f"arrived-{number}", "mail", "send")])
            expect(page.locator("tbody tr").first).to_have_attribute("data-key", f"arrived-{number}")
        expect(page.locator("[data-live-status]")).to_have_text("live")
        observed.check(page)


def test_a_page_of_a_store_that_does_not_answer_does_not_claim_to_be_live(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, _ = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/jobs?queue=mail")
        expect(page.locator("[data-live-status]")).to_have_text("live")
        page.route("**/jobs?queue=mail", lambda route: route.fulfill(status=503, body="away"))
        store.enqueue([JobSpec("arrived-later", "mail", "send")])
        expect(page.locator("[data-live-status]")).to_have_text("no answer")
        page.unroute("**/jobs?queue=mail")
        store.enqueue([JobSpec("arrived-last", "mail", "send")])
        expect(page.locator("tbody tr").first).to_have_attribute("data-key", "arrived-last")
        expect(page.locator("[data-live-status]")).to_have_text("live")


def test_a_page_that_gets_no_answer_at_all_does_not_claim_to_be_live(browser: Browser, store: Store) -> None:
    """A connection that broke without a word: the request neither fails nor ends."""
    with serving(store) as dashboard:
        page, _ = signed_in(browser, dashboard)
        page.clock.install()
        page.goto(f"{dashboard.base}/jobs?queue=mail")
        expect(page.locator("[data-live-status]")).to_have_text("live")
        with page.expect_request("**/jobs?queue=mail"):
            page.route("**/jobs?queue=mail", lambda _: None)
            store.enqueue([JobSpec("arrived-later", "mail", "send")])
        expect(page.locator("[data-live-status]")).to_have_text("live")
        page.clock.fast_forward(21_000)
        expect(page.locator("[data-live-status]")).to_have_text("no answer")


def test_an_act_is_asked_about_on_the_page_and_done(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/job?id=failed-1")
        page.locator(".head").get_by_text("Redrive").click()
        dialog = page.locator("dialog#act")
        expect(dialog.locator("h1")).to_have_text("Redrive failed-1")
        dialog.locator('input[name="reason"]').fill("the mailbox was emptied")
        dialog.get_by_role("button", name="Redrive").click()
        expect(page.locator("[data-notice]")).to_have_text("1 job redriven.")
        job = store.job("failed-1")
        assert job is not None
        assert job.state is JobState.READY
        assert store.actions(limit=1)[0].reason == "the mailbox was emptied"
        observed.check(page)


def test_a_worker_is_made_quiet_and_resumed_and_the_page_follows(browser: Browser, store: Store) -> None:
    with working(store, "web-1"), serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/workers")
        row = page.locator('tr[data-key="web-1"]')
        for button, state, verb in (("Quiet", "quiet", "quiet_worker"), ("Resume", "running", "resume_worker")):
            row.get_by_role("link", name=button).click()
            dialog = page.locator("dialog#act")
            expect(dialog.locator("h1")).to_have_text(f"{button} worker web-1")
            dialog.locator('input[name="reason"]').fill("its memory grows")
            dialog.get_by_role("button", name=button).click()
            expect(page.locator("[data-notice]")).to_contain_text("Worker web-1 was asked to")
            expect(row.locator("td .state")).to_have_text(state)
            action = store.actions(limit=1)[0]
            assert (action.verb, action.target, action.reason) == (verb, "web-1", "its memory grows")
        observed.check(page)


def test_a_lane_is_unblocked_and_the_page_follows(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/lanes")
        page.locator("tbody").get_by_text("Unblock").click()
        dialog = page.locator("dialog#act")
        expect(dialog.locator("h1")).to_have_text("Unblock lane lane plain text")
        dialog.locator('select[name="how"]').select_option("cancel")
        dialog.locator('input[name="reason"]').fill("the order was withdrawn")
        dialog.get_by_role("button", name="Unblock").click()
        expect(page.locator("[data-notice]")).to_have_text("head-1 cancelled. The lane continues.")
        expect(page.locator("tbody .state")).to_have_text("due")
        store.claim("another", ["lanes"], 1)
        expect(page.locator("tbody .state")).to_have_text("running")
        page.goto(f"{dashboard.base}/audit")
        expect(page.locator("tbody tr").first).to_contain_text("the order was withdrawn")
        observed.check(page)


def test_a_lease_counts_down(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/leases")
        left = page.locator("time.countdown")
        before = left.text_content()
        assert before is not None
        expect(left).not_to_have_text(before)
        expect(left).to_contain_text("in ")
        observed.check(page)


def test_the_palette_leads_to_a_job_without_a_mouse(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        page.keyboard.press("Control+k")
        expect(page.get_by_role("combobox", name="Find")).to_be_focused()
        page.keyboard.type("succeeded-1")
        expect(page.locator("#palette-list li").first).to_contain_text("id begins with succeeded-1")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs?id=succeeded-1")
        expect(page.locator("tbody tr")).to_have_count(1)
        observed.check(page)


def test_nothing_is_fetched_while_the_tab_is_hidden(browser: Browser, store: Store) -> None:
    with serving(store) as dashboard:
        page, _ = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/jobs")
        expect(page.locator("[data-live-status]")).to_have_text("live")
        page.evaluate(HIDE % "true")
        expect(page.locator("[data-live-status]")).to_have_text("paused")
        store.enqueue([JobSpec("unseen", "mail", "send")])
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate(HIDE % "false")
        expect(page.locator("tbody tr").first).to_have_attribute("data-key", "unseen")
        assert any(url.endswith("/events") for url in asked)
