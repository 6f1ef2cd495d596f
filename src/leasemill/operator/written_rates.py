"""Rates as operators write them, on the command line and in the dashboard's forms. Pure.

Only ASCII digits are numbers here, and neither a count nor a period may be zero.
"""

from __future__ import annotations

import re
from typing import Final

from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND

UNITS_S: Final = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
PACE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/(s|min|h))?")
LIMIT_RATE: Final = re.compile(r"([0-9]{1,9})/([0-9]{1,6})?(s|min|h|d)")


def jobs_per_second(text: str) -> float:
    """`5/s`, `100/min`, `1000/h`; a bare number is per second."""
    match = PACE.fullmatch(text)
    rate = float(match[1]) / UNITS_S[match[2] or "s"] if match else 0.0
    if rate <= 0:
        raise Invalid(f"{text!r} is not a rate: write it as 5/s, 100/min or 1000/h")
    return rate


def limit_rate(text: str) -> tuple[int, int]:
    """`50/s`, `100/min`, `5000/h`, `1/d`, or `3/10s`: how many, and in how many microseconds."""
    match = LIMIT_RATE.fullmatch(text)
    if match is None or int(match[1]) == 0 or int(match[2] or 1) == 0:
        raise Invalid(f"{text!r} is not a rate: write it as 50/s, 100/min, 5000/h, 1/d or 3/10s")
    return int(match[1]), int(match[2] or 1) * UNITS_S[match[3]] * SECOND
