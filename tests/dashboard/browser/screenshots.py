"""The pictures of the guide: `make screenshots` writes them. They are of a shop whose time is simulated.

    python -m tests.dashboard.browser.screenshots FOLDER

writes every page in three widths, light and dark, with rough data in the shop, to be looked at.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from playwright.sync_api import expect, sync_playwright

from leasemill.cli.dashboard import served
from leasemill.dashboard.pages import PAGES
from leasemill.kernel.model import JobState
from leasemill.server.address import bound_socket
from tests.dashboard.browser import rough
from tests.dashboard.browser.serving import PATIENCE_MS, ServedDashboard, launched, signed_in
from tests.dashboard.browser.shop import Shop

IMAGES: Final = Path(__file__).resolve().parents[3] / "docs" / "images"
GUIDE: Final[tuple[tuple[str, Any], ...]] = (
    *(("overview", "light"), ("job", "dark"), ("leases", "light"), ("refusals", "dark"), ("failures", "light")),
)
"""Pages that the guide shows, each in one scheme."""


def addresses(shop: Shop) -> dict[str, str]:
    found = {page.name: page.path for page in PAGES if page.section is not None}
    zombie = shop.example(JobState.SUCCEEDED, with_refusal=True)
    failed = shop.example(JobState.FAILED, kind="charge_card")
    return found | {
        "job": f"/job?id={zombie.spec.id}",
        "job-failed": f"/job?id={failed.spec.id}",
        "jobs-failed": "/jobs?state=failed",
        "queue": "/queue?name=reports",
        "queue-paused": "/queue?name=thumbnails",
        "queue-policy": "/queue?name=billing",
        "act": "/acts/redrive-all?state=failed",
        "policy": "/acts/set-queue-policy?queue=billing",
    }


def rough_addresses() -> dict[str, str]:
    queue, lane = quote(rough.LONG_QUEUE), quote(rough.LONG_LANE)
    return {
        "job-huge": f"/job?id={rough.HUGE}",
        "job-behind": "/job?id=behind-1",
        "job-long": f"/job?id={rough.UNBROKEN}-0",
        "job-missing": "/job?id=nothing",
        "jobs-long": f"/jobs?queue={queue}",
        "jobs-none": "/jobs?queue=nobody",
        "queue-long": f"/queue?name={queue}",
        "lane": f"/lanes?queue={queue}&lane={lane}",
        "group": f"/groups?id={quote('group ' + rough.TEXT)}",
        "schedule": f"/schedules?name={rough.LONG_SCHEDULE}",
        "limit": "/limits?name=api",
        "worker": f"/workers?worker={quote('stuck ' + rough.TEXT)}",
        "sweeps": "/sweeps",
        "sign-in": "/sign-in",
    }


def main(folder: Path, widths: tuple[int, ...], *, is_guide: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shop = Shop()
    with bound_socket("127.0.0.1", 0) as listener:
        links: list[str] = []
        link, server = served(shop.store, listener, "127.0.0.1", by="ann", on_sign_in=links.append)
        links.append(link)
        sampler = server.dashboard.open()
        shop.live(sampler)
        if not is_guide:
            rough.fill_rough(shop.store)
            sampler.sample()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            _take(folder, widths, ServedDashboard(link.partition("/sign-in")[0], links), shop, is_guide=is_guide)
        finally:
            server.should_exit = True
            thread.join()


def _take(folder: Path, widths: tuple[int, ...], dashboard: ServedDashboard, shop: Shop, *, is_guide: bool) -> None:
    places = addresses(shop) | rough_addresses()
    wanted: list[tuple[str, Any]] = [(name, scheme) for name in places for scheme in ("light", "dark")]
    with sync_playwright() as playwright, launched(playwright) as browser:
        page, observed = signed_in(browser, dashboard)
        for name, scheme in GUIDE if is_guide else wanted:
            for width in widths:
                page.set_viewport_size({"width": width, "height": 860 if width > 400 else 780})
                page.emulate_media(color_scheme=scheme)
                page.goto(dashboard.base + places[name])
                page.wait_for_selector('[data-live-status][data-state="live"], .ask, .card.alone')
                if name == "overview":  # durations are measured every few seconds, of a clock that is not simulated
                    expect(page.locator(".tiles")).not_to_contain_text("p95 –", timeout=PATIENCE_MS)
                suffix = "" if is_guide else f"-{width}-{scheme}"
                page.screenshot(path=folder / f"dashboard-{name}{suffix}.png", full_page=not is_guide)
        if is_guide:  # else one page is of a job that is not there, which browsers report as an error
            observed.check(page)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]), (360, 768, 1280, 1440), is_guide=False)
    else:
        main(IMAGES, (1280,), is_guide=True)
