"""Every page, in three widths, light and dark: no error, nothing wider than the screen, no serious fault for those who
cannot see or use a mouse. Run by `make browser`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from leasemill.dashboard.pages import PAGES
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.dashboard.browser.rough import fill_rough
from tests.dashboard.browser.screenshots import rough_addresses
from tests.dashboard.browser.serving import Observed, ServedDashboard, serving, signed_in
from tests.dashboard.filling import fill
from tests.dashboard.filling_control import fill_control

TEXT: Final = "a longer text of many words"
WIDTHS: Final = (360, 768, 1440)
SCHEMES: Final = ("light", "dark")
ADDRESSES: Final = (
    *(page.path for page in PAGES if page.section is not None),
    "/?span=7d",
    "/jobs?state=failed&header=tenant",
    "/jobs?queue=nobody",
    *(f"/job?id={name}-1" for name in ("ready", "leased", "succeeded", "failed", "zombie", "behind", "head")),
    *(f"/queue?name={name}" for name in ("mail", "lanes")),
    f"/workers?worker={quote('worker ' + TEXT)}",
    f"/workers?worker={quote('stuck ' + TEXT)}",
    f"/lanes?queue=lanes&lane={quote('lane ' + TEXT)}",
    f"/groups?id={quote('group ' + TEXT)}",
    "/groups?show=all",
    "/schedules?name=report",
    "/schedules?name=sweep",
    "/limits?name=api",
    "/limits?name=mails",
    "/leases?only=risk&queue=leased",
    "/audit?verb=cancel",
    f"/acts/unblock-lane?queue=lanes&lane={quote('lane ' + TEXT)}",
    "/acts/set-limit?name=mails",
    "/sweeps",
    "/acts/pause-queue?queue=mail",
    "/acts/set-queue-policy?queue=mail",
    "/acts/cancel-all",
    "/sign-in",
)
SERIOUS: Final = {"serious", "critical"}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with open_store("memory:") as opened:
        fill(opened, TEXT)
        fill_control(opened, TEXT)
        yield opened


@pytest.fixture(scope="module")
def looking(store: Store, browser: Browser) -> Iterator[tuple[Page, Observed, ServedDashboard]]:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard)
        yield page, observed, dashboard


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_is_in_order(
    looking: tuple[Page, Observed, ServedDashboard], address: str, width: int, scheme: Any
) -> None:
    page, observed, dashboard = looking
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(dashboard.base + address)
    page.wait_for_selector("h1")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page).response["violations"]
    serious = [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found if one["impact"] in SERIOUS]
    assert serious == []
    observed.check(page)


@pytest.fixture(scope="module")
def looking_at_rough_data(browser: Browser) -> Iterator[tuple[Page, ServedDashboard]]:
    with open_store("memory:") as store:
        fill_rough(store)
        with serving(store) as dashboard:
            page, _ = signed_in(browser, dashboard)
            yield page, dashboard


@pytest.mark.parametrize("width", [*WIDTHS, 600, 1024, 1280, 1366])
def test_no_name_is_so_long_that_it_pushes_a_column_out_of_sight(
    looking_at_rough_data: tuple[Page, ServedDashboard], width: int
) -> None:
    page, dashboard = looking_at_rough_data
    page.set_viewport_size({"width": width, "height": 900})
    hidden: dict[str, int] = {}
    for address in (*(one.path for one in PAGES if one.section is not None), *rough_addresses().values()):
        page.goto(dashboard.base + address)
        page.wait_for_selector("h1")
        beyond = page.evaluate(
            "Math.max(0, ...[...document.querySelectorAll('.table')].map((one) => one.scrollWidth - one.clientWidth))"
        )
        beyond = max(beyond, page.evaluate("document.documentElement.scrollWidth") - width)
        if beyond > 0:
            hidden[address] = beyond
    assert hidden == {}


def test_the_switch_changes_between_light_and_dark(looking: tuple[Page, Observed, ServedDashboard]) -> None:
    page, observed, dashboard = looking
    page.emulate_media(color_scheme="light")
    page.goto(dashboard.base)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch between light and dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(ground) == light
    observed.check(page)


def test_every_control_is_reached_by_the_keyboard(looking: tuple[Page, Observed, ServedDashboard]) -> None:
    page, _, dashboard = looking
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{dashboard.base}/queues")
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, summary')].filter((one) => one.checkVisibility()).length"
    )
    seen = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(seen) >= wanted
