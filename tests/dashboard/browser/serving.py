"""The dashboard as `leasemill dashboard` serves it, and a browser that reports what a page must not do."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request

from leasemill import App, Worker
from leasemill.cli.dashboard import served
from leasemill.server.address import bound_socket
from leasemill.store.base import Store

CHROMIUM: Final = Path(os.environ.get("LEASEMILL_TEST_CHROMIUM", "/usr/bin/chromium"))
NO_CHROMIUM: Final = f"no browser at {CHROMIUM}: make browser installs it, LEASEMILL_TEST_CHROMIUM names another"
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS: Final = 60_000
WATCH_POLICY: Final = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(
        `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@dataclass(frozen=True)
class ServedDashboard:
    base: str
    links: list[str]
    """That sign in; the last one is good."""


@contextmanager
def serving(store: Store, *, is_read_only: bool = False) -> Iterator[ServedDashboard]:
    with bound_socket("127.0.0.1", 0) as listener:
        links: list[str] = []
        link, server = served(
            store, listener, "127.0.0.1", by="ann", on_sign_in=links.append, is_read_only=is_read_only
        )
        links.append(link)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield ServedDashboard(link.partition("/sign-in")[0], links)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def working(store: Store, worker_id: str) -> Iterator[threading.Thread]:
    """A worker with nothing to do, in a thread."""
    app = App(store=store)

    @app.job(queue="watched")
    def noop() -> None: ...

    worker = Worker(app, worker_id=worker_id, handle_signals=False)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    try:
        yield thread
    finally:
        worker.stop()
        thread.join()


def launched(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


@dataclass
class Observed:
    """What a page did that it must not do."""

    base: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.add_init_script(WATCH_POLICY)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(message.text)

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(f"{self.base}/"):
            self.foreign.append(request.url)

    def check(self, page: Page) -> None:
        assert self.errors == []
        assert self.foreign == []
        assert page.evaluate("window.violations") == []


def signed_in(browser: Browser, dashboard: ServedDashboard, **options: object) -> tuple[Page, Observed]:
    page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    observed = Observed(dashboard.base)
    observed.watch(page)
    page.goto(dashboard.links[-1])
    page.wait_for_selector("h1")
    return page, observed
