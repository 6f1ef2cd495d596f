"""Templates: how values are written, and the one environment that renders them.

Every value is escaped by the template engine. What must never happen here: a filter that returns markup made from
data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from leasemill.dashboard.charts import short_number
from leasemill.kernel.model import NEVER, SECOND, Job, JobState
from leasemill.kernel.read.filter import last_error
from leasemill.operator.wording import HOUR_S, MINUTE_S, counted, instant, span

SHOWN_TOKEN: Final = 6
INSTANT: Final = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)\.\d{6}Z")
"""An instant, as explanations write it."""
WRITTEN_INSTANT: Final = re.compile(r"(\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b)")
QUOTED: Final = re.compile(r"'[^']*'")
FROM_RIGHT_TO_LEFT: Final = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def assets() -> dict[str, bytes]:
    """Return the files that pages load, by name."""
    folder = resources.files("leasemill.dashboard") / "assets"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return a digest of the files. It is part of their address, so that browsers may keep them."""
    digest = blake2b(digest_size=6)
    for name, content in sorted(files.items()):
        digest.update(name.encode() + content)
    return digest.hexdigest()


@cache
def environment() -> Environment:
    """Return the process's environment, which keeps compiled templates."""
    made = Environment(
        loader=PackageLoader("leasemill.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        ago=ago,
        amount=amount,
        clock=clock,
        coarse=coarse,
        counted=counted,
        duration=duration,
        first_line=first_line,
        instant=instant,
        iso=iso,
        last_digits=last_digits,
        last_error=last_error,
        number=number,
        pieces=pieces,
        rate=rate,
        pace=pace,
        readable=readable,
        short_number=short_number,
    )
    made.globals.update(NEVER=NEVER, SECOND=SECOND, shown_state=shown_state)
    return made


def address(root: str, path: str, **fields: object) -> str:
    """Return a URL of this dashboard. Fields that are None or empty are left out."""
    given = [
        (name, one)
        for name, value in fields.items()
        for one in (value if isinstance(value, list | tuple) else [value])
        if one not in (None, "")
    ]
    return f"{root}{quote(path)}{'?' + urlencode(given) if given else ''}"


# How values are written ------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def amount(value: float) -> str:
    """Write the progress that a handler reported: `412,000`, `0.5`."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def rate(value: float | None) -> str:
    """Write a rate, with as many digits as it takes."""
    if value is None:
        return "–"
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def pace(per_s: float) -> str:
    """Write a rate as `5/s`, `30/min` or `1/h`, in the shortest unit that gives at least one."""
    if per_s >= 1:
        return f"{rate(per_s)}/s"
    per_min = round(per_s * 60, 3)
    return f"{rate(per_min)}/min" if per_min >= 1 else f"{rate(round(per_s * 3_600, 3))}/h"


def duration(us: int | None) -> str:
    """Write a duration as `2.0 ms` or `3.1 s`; `–` for None."""
    return "–" if us is None else span(max(0, us))


def ago(at: int | None, now: int) -> str:
    """Write how long ago something was, or when it will be. It is coarse, so that a page stays calm."""
    if at is None:
        return "–"
    if abs(at - now) < SECOND:
        return "now"
    return f"in {coarse(at - now)}" if at > now else f"{coarse(now - at)} ago"


def coarse(us: int) -> str:
    """Write a duration as `5 s`, `12 min`, `3.5 h` or `2.1 d`."""
    seconds = us / SECOND
    return f"{int(seconds)} s" if seconds < MINUTE_S else f"{int(seconds / 60)} min" if seconds < HOUR_S else span(us)


def clock(at: int | None) -> str:
    """Write the time of day, with the date if it is not obvious."""
    if at is None or at == NEVER:
        return instant(at)
    return datetime.fromtimestamp(at / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")


def readable(sentence: str) -> str:
    """Return a sentence of an explanation with its instants to the second. The timeline has them in full."""
    return INSTANT.sub(r"\1 \2", sentence)


def pieces(sentence: str) -> list[tuple[str, bool]]:
    """Split a sentence of an explanation into texts, and say of each whether it is an instant, which is not wrapped.

    A name that is written from right to left is isolated, so that it does not turn what stands around it.
    """
    text = readable(sentence)
    if FROM_RIGHT_TO_LEFT.search(text):
        text = QUOTED.sub("\u2068\\g<0>\u2069", text)
    return [(part, index % 2 == 1) for index, part in enumerate(WRITTEN_INSTANT.split(text))]


def iso(at: int | None) -> str:
    return "" if at is None or at == NEVER else instant(at)


def last_digits(token: str) -> str:
    """Return enough of a token to compare it with a log line, but too little to use it."""
    return f"…{token[-SHOWN_TOKEN:]}"


def first_line(text: str | None, most: int = 160) -> str:
    line = (text or "").partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


def shown_state(job: Job, now: int) -> str:
    """A job that is READY but not due yet is shown as scheduled, unlike one that waits for a worker."""
    return "scheduled" if job.state is JobState.READY and job.available_at > now else job.state.value


def context_urls(root: str, path: str, query: list[tuple[str, str]]) -> dict[str, Any]:
    """Return what templates build URLs with: `url(path, …)`, and `here(…)`, the page itself with other fields."""

    def url(path: str, **fields: object) -> str:
        return address(root, path, **fields)

    def here(**fields: object) -> str:
        kept: dict[str, list[str]] = {}
        for name, value in query:
            if name not in fields:
                kept.setdefault(name, []).append(value)
        return address(root, path, **kept, **fields)

    def back() -> str:
        """Return this page's path, for an action to return to."""
        return address("", path, **_grouped(query))

    return {"url": url, "here": here, "back": back}


def _grouped(query: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in query:
        found.setdefault(name, []).append(value)
    return found
