"""O11: jobs are found by their headers, in every command that selects jobs."""

from __future__ import annotations

import pytest

from leasemill.kernel.commands import JobFilter
from leasemill.kernel.model import JobState, Rules
from leasemill.testing.conformance.group_steps import GROUP, create
from leasemill.testing.conformance.harness import Harness
from leasemill.testing.conformance.steps import (
    OPERATOR,
    WHY,
    acked,
    claim,
    enqueue_and_claim,
    enqueue_one,
    every_job,
    failed_for_good,
    state_of,
)
from leasemill.testing.rules import rule

ACME = {"tenant": "acme"}
FOUND = {
    "one header": (ACME, ["acme", "acme-eu"]),
    "all of them": ({"tenant": "acme", "region": "eu"}, ["acme-eu"]),
    "another value": ({"tenant": "globex"}, ["globex"]),
    "a part of a value": ({"tenant": "acm"}, []),
    "another case": ({"tenant": "ACME"}, []),
    "a name alone": ({"tenant": ""}, ["empty"]),
    "no such name": ({"nobody": "acme"}, []),
    "text that JSON escapes": ({"note": 'a "quoted" \\ line\n{}[],%_ü€'}, ["odd"]),
    "no header": ({}, ["acme", "globex", "acme-eu", "empty", "odd", "plain"]),
}


class HeaderFilters:
    @rule("O11", "O6")
    @pytest.mark.parametrize("which", FOUND)
    def test_jobs_are_listed_by_their_headers(self, harness: Harness, which: str) -> None:
        enqueue_one(harness, "acme", headers=ACME)
        enqueue_one(harness, "globex", headers={"tenant": "globex", "region": "eu"})
        enqueue_one(harness, "acme-eu", headers={"region": "eu", "tenant": "acme", "trace": "4bf92f35"})
        enqueue_one(harness, "empty", headers={"tenant": ""})
        enqueue_one(harness, "odd", headers={"note": 'a "quoted" \\ line\n{}[],%_ü€'})
        enqueue_one(harness, "plain")
        headers, expected = FOUND[which]
        where = JobFilter(headers=headers)
        assert [job.spec.id for job in every_job(harness, where, limit=1)] == expected
        newest = harness.store.jobs(where, newest_first=True)
        assert [job.spec.id for job in newest.jobs] == expected[::-1]
        named = JobFilter(headers=headers, job_ids=("plain", "acme"))
        assert [job.spec.id for job in every_job(harness, named)] == [
            one for one in expected if one in ("acme", "plain")
        ]

    @rule("O11")
    def test_a_header_is_one_filter_among_others(self, harness: Harness) -> None:
        create(harness)
        enqueue_one(harness, "other", headers=ACME, queue="other")
        enqueue_one(harness, "kind", headers=ACME, kind="mail")
        enqueue_one(harness, "lane", headers=ACME, lane="lane")
        enqueue_one(harness, "member", headers=ACME, rules=Rules(group=GROUP))
        enqueue_one(harness, "other member", rules=Rules(group=GROUP))
        found = {
            "other": JobFilter(headers=ACME, queue="other"),
            "kind": JobFilter(headers=ACME, kind="mail"),
            "lane": JobFilter(headers=ACME, lane="lane"),
            "member": JobFilter(headers=ACME, group=GROUP),
        }
        for job_id, where in found.items():
            assert [job.spec.id for job in every_job(harness, where)] == [job_id]
            newest = harness.store.jobs(where, newest_first=True)
            assert [job.spec.id for job in newest.jobs] == [job_id]

    @rule("O11", "O2", "O5")
    def test_jobs_are_redriven_and_purged_by_their_headers(self, harness: Harness) -> None:
        for job_id, headers in (("acme", ACME), ("globex", {"tenant": "globex"}), ("plain", None)):
            failed_for_good(harness, enqueue_and_claim(harness, job_id, headers=headers))
        where = JobFilter(headers=ACME, states=frozenset({JobState.FAILED, JobState.DEAD}))
        newest = harness.store.jobs(where, newest_first=True)
        assert [job.spec.id for job in newest.jobs] == ["acme"]
        assert harness.store.redrive(JobFilter(headers=ACME), by=OPERATOR, reason=WHY).job_ids == ("acme",)
        assert state_of(harness, "globex") is JobState.FAILED
        for lease in claim(harness):
            acked(harness, lease)
        assert harness.store.purge(JobFilter(headers=ACME), by=OPERATOR, reason=WHY).job_ids == ("acme",)
        assert [job.spec.id for job in every_job(harness)] == ["globex", "plain"]
