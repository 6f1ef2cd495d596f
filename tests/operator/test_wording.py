"""Rates as operators write them: read the same on the command line and in the dashboard."""

from __future__ import annotations

import pytest

from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND
from leasemill.operator.wording import jobs_per_second, limit_rate


@pytest.mark.parametrize(("text", "rate"), [("5/s", 5), ("2", 2), ("0.5", 0.5), ("60/min", 1), ("3600/h", 1)])
def test_a_pace_is_read_as_jobs_per_second(text: str, rate: float) -> None:
    assert jobs_per_second(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0", "0/s", "-1/s", "5/d", "5/", "5 /s", "٣/s", "5/s\n", "1" * 400])
def test_what_is_not_a_pace_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a rate: write it as 5/s"):
        jobs_per_second(text)


@pytest.mark.parametrize(
    ("text", "count", "seconds"), [("50/s", 50, 1), ("100/min", 100, 60), ("1/d", 1, 86_400), ("3/10s", 3, 10)]
)
def test_the_rate_of_a_limit_is_a_count_and_a_period(text: str, count: int, seconds: int) -> None:
    assert limit_rate(text) == (count, seconds * SECOND)


@pytest.mark.parametrize(
    "text", ["", "fast", "5", "0/s", "3/0s", "3/00s", "1.5/s", "٣/s", "3/٣s", "3/s\n", "1" * 5_000]
)
def test_what_is_not_the_rate_of_a_limit_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a rate: write it as 50/s"):
        limit_rate(text)
