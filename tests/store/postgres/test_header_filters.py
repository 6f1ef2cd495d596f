"""Headers have no index: a filter by them looks at a bounded number of jobs in a call, and returns where to go on."""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobSpec
from leasemill.store.factory import open_store
from leasemill.store.postgres import reading
from leasemill.testing.rules import rule


@rule("O6", "O11")
@pytest.mark.parametrize("newest_first", [False, True])
def test_a_header_that_fits_few_jobs_never_makes_one_long_step(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    monkeypatch.setattr(reading, "LOOKED_AT_ONCE", 5)
    monkeypatch.setattr(reading, "JOBS_LOOKED_AT", 10)
    with open_store(postgres_url) as store:
        tenants = ["acme" if number == 17 else "globex" for number in range(34)]
        store.enqueue([JobSpec(str(number), "q", "k", headers={"tenant": one}) for number, one in enumerate(tenants)])
        pages = []
        after: int | None = 0
        while after is not None:
            page = store.jobs(JobFilter(headers={"tenant": "acme"}), after=after, newest_first=newest_first)
            pages.append([job.spec.id for job in page.jobs])
            after = page.after
        assert pages == [[], ["17"], [], []]
