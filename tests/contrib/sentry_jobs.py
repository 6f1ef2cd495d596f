"""An app whose failures go to Sentry, with a transport that keeps what it is given, and writes it to a file when it is
flushed. Imported again by handlers' processes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from leasemill import App, Context, Fail, Limit, Release, RetryAfter, Throttled
from leasemill.contrib.sentry import instrument

VARIABLE = "LEASEMILL_TEST_SENTRY"
app = App(os.environ.get("LEASEMILL_TEST_SENTRY_URL", "memory:"), retry=0)
log = logging.getLogger("shop")


class Kept(Transport):
    """Nothing is sent: events are kept, and written where the environment says when they must be gone."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(json.loads(json.dumps(event, default=str)))

    def flush(self, timeout: float, callback: Any = None) -> None:
        folder = os.environ.get(VARIABLE)
        if folder is not None:
            (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(self.events))


def begin() -> Kept:
    transport = Kept()
    sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=transport, auto_enabling_integrations=False)
    return transport


if VARIABLE in os.environ:
    begin()
instrument(app)


class ShopError(Exception):
    pass


def _fail(number: int) -> None:
    try:
        raise KeyError("shelf")
    except KeyError as error:
        raise ShopError(f"no stock of {number}") from error


@app.job
def in_thread(number: int) -> None:
    _fail(number)


@app.job
async def in_task(number: int) -> None:
    await asyncio.sleep(0)
    _fail(number)


@app.job(executor="process")
def in_process(number: int) -> None:
    log.error("logged in a process")
    _fail(number)


@app.job(executor="process", max_expirations=1)
def dies() -> None:
    os._exit(3)


@app.job(retry=1)
def tried_twice() -> None:
    _fail(7)


@app.job(retry=5)
def given_up() -> None:
    raise Fail("never") from OSError("gone")


@app.job(retry=5)
def later() -> None:
    raise RetryAfter(60, "not yet")


@app.job
def given_back(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise Release(60)


@app.job(limit=Limit(5, name="api"))
def throttled(ctx: Context) -> None:
    raise Throttled("api", 60)


@app.job
def loses(ctx: Context) -> None:
    app.handle(ctx.job_id).cancel(reason="shows a loss")
    with ctx.commit():
        pass


@app.job(timeout=0.05)
async def slow() -> None:
    await asyncio.sleep(60)


@app.job
def after_commit(ctx: Context) -> None:
    with ctx.commit():
        pass
    _fail(7)


@app.job
def tags_in_thread(name: str) -> None:
    sentry_sdk.set_tag("mine", name)
    sentry_sdk.add_breadcrumb(message=f"crumb of {name}")
    raise ShopError(name)


@app.job
async def tags_in_task(name: str) -> None:
    sentry_sdk.set_tag("mine", name)
    await asyncio.sleep(0)
    sentry_sdk.add_breadcrumb(message=f"crumb of {name}")
    await asyncio.sleep(0)
    raise ShopError(name)


@app.job
def says_nothing() -> None:
    raise ShopError("nothing")
