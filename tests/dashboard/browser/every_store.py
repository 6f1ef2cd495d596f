"""Every page on every store that other processes can use too, in a browser: the pages show what is in the store, and
follow what is done to it elsewhere. Run by `make browser`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from leasemill.kernel.model import JobSpec, JobState, Verb
from leasemill.store.factory import open_store
from tests.dashboard.browser.every_page import ADDRESSES, TEXT
from tests.dashboard.browser.serving import PATIENCE_MS, ServedDashboard, serving, signed_in
from tests.dashboard.filling import fill
from tests.dashboard.filling_control import fill_control
from tests.lab import served

WIDTH: Final = 1440
FACTS: Final = {
    "/": "Waiting",
    "/jobs": "ready-1",
    "/queues": "mail",
    "/leases": "leased-1",
    "/workers": f"worker {TEXT}",
    "/failures": f"ValueError: {TEXT}",
    "/refusals": "zombie-1",
    "/lanes": f"lane {TEXT}",
    "/schedules": "report",
    "/groups": f"group {TEXT}",
    "/limits": "mails",
    "/audit": f"reason {TEXT}",
    "/job?id=zombie-1": "Refused",
    "/queue?name=mail": "Flow and rules",
}
"""What a page shows of the store, where it is not its heading alone."""
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(params=["file", "postgresql", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty store; `http`: of a `leasemill serve` in a process of its own, in front of a folder."""
    folder = f"file:{tmp_path / 'jobs'}"
    if request.param == "http":
        with served.serving(folder) as server:
            yield server.url
        return
    yield folder if request.param == "file" else request.getfixturevalue("postgres_url")


@pytest.mark.timeout(600)
def test_every_page_is_in_order(browser: Browser, url: str) -> None:
    with open_store(url) as store:
        fill(store, TEXT)
        fill_control(store, TEXT)
        with serving(store) as dashboard:
            page, observed = signed_in(browser, dashboard, viewport={"width": WIDTH, "height": 900})
            expect(page.locator(".topbar .where")).to_have_text(store.name)
            for address in ADDRESSES:
                _look(page, dashboard, address)
                observed.check(page)
            page.context.close()


def _look(page: Page, dashboard: ServedDashboard, address: str) -> None:
    response = page.goto(dashboard.base + address)
    assert response is not None
    assert response.status == 200, address
    page.wait_for_selector('[data-live-status][data-state="live"], .ask, .card.alone')
    expect(page.locator("h1").first).to_be_visible()
    expect(page.locator("#content .banner.failed")).to_have_count(0)
    expect(page.locator("main")).to_contain_text(FACTS.get(address, ""))
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH, address


def test_a_page_follows_what_is_enqueued_elsewhere(browser: Browser, url: str) -> None:
    with open_store(url) as store, open_store(url) as elsewhere, serving(store) as dashboard:
        elsewhere.enqueue([JobSpec("before", "mail", "send")])
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/jobs?queue=mail")
        page.wait_for_selector('[data-live-status][data-state="live"]')
        expect(page.locator("tbody tr")).to_have_count(1)
        page.evaluate("window.isTheSamePage = true")
        elsewhere.enqueue([JobSpec("arrived-later", "mail", "send")])
        expect(page.locator("tbody tr").first).to_have_attribute("data-key", "arrived-later")
        assert page.evaluate("window.isTheSamePage")
        observed.check(page)
        page.context.close()


def test_everything_that_matches_is_acted_on_and_its_progress_is_shown(browser: Browser, url: str) -> None:
    with open_store(url) as store, serving(store) as dashboard:
        fill(store)
        page, observed = signed_in(browser, dashboard)
        page.goto(f"{dashboard.base}/jobs?queue=mail&state=failed")
        page.locator(".head").get_by_role("link", name="Redrive").click()
        dialog = page.locator("dialog#act")
        expect(dialog).to_contain_text("Dry run: 1 job matches and is FAILED.")
        dialog.locator('input[name="reason"]').fill("the mailbox was emptied")
        dialog.get_by_role("button", name="Redrive all").click()
        page.wait_for_url("**/sweeps/*")
        expect(page.locator("#content")).to_contain_text("Finished.")
        expect(page.locator("#content .big")).to_have_text("1 of 1 done")
        job = store.job("failed-1")
        assert job is not None
        assert job.state is JobState.READY
        action = store.actions(limit=1)[0]
        assert (action.verb, action.target, action.reason) == (Verb.REDRIVE, "failed-1", "the mailbox was emptied")
        observed.check(page)
        page.context.close()
