"""What an operator does from the command line, on any store: see what failed, act on it, and find the act on record."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasemill.cli import main
from leasemill.kernel.commands import AckReport, Acquired, AcquireRequest, NackReport
from leasemill.kernel.model import JobSpec, JobState, OnFailure, Policy
from leasemill.store.base import Store
from leasemill.store.factory import open_store

BLOCK = Policy(max_retries=0, on_failure=OnFailure.BLOCK)


class Desk:
    """A store, and the command line on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store: Store = open_store(url)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--url", self.url])

    def lines(self, *arguments: str) -> list[str]:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def document(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refused(self, *arguments: str) -> tuple[int, str]:
        result = self.run(*arguments)
        assert "Traceback" not in result.output
        return result.exit_code, result.output

    def enqueue(self, *job_ids: str, queue: str = "mail", kind: str = "send", **fields: Any) -> None:
        self.store.enqueue([JobSpec(job_id, queue, kind, **fields) for job_id in job_ids])

    def fail(self, error: str, *job_ids: str, **fields: Any) -> None:
        """Jobs that failed for good with this error."""
        self.enqueue(*job_ids, **fields)
        leases = self.store.claim("worker-1", [fields.get("queue", "mail")], len(job_ids))
        assert {lease.job.id for lease in leases} == set(job_ids)
        self.store.nack([NackReport(one.job.id, one.token, error, is_permanent=True) for one in leases])

    def succeed(self, count: int, queue: str = "mail") -> list[str]:
        leases = self.store.claim("worker-1", [queue], count)
        self.store.ack([AckReport(one.job.id, one.token) for one in leases])
        return [one.job.id for one in leases]

    def states(self, *job_ids: str) -> list[JobState]:
        found = [self.store.job(job_id) for job_id in job_ids]
        return [job.state for job in found if job is not None]


def swept(*job_ids: str, dry_run: bool = False) -> dict[str, Any]:
    return {"job_ids": [*job_ids], "left_alone": [], "is_dry_run": dry_run}


class OperateSuite:
    """A store's tests give the `desk`."""

    # Failures

    def test_failures_are_grouped_by_kind_and_by_error_without_its_values(self, desk: Desk) -> None:
        desk.fail("TimeoutError: host 'a' after 30 s\n  File …", "a1")
        desk.fail("TimeoutError: host 'b' after 31.5 s\n  File …", "a2")
        desk.fail("TimeoutError: host 'c' after 3 s", "b1", queue="other", kind="fetch")
        desk.fail("ValueError: no", "c1")
        desk.enqueue("waits")
        groups = desk.document("jobs", "failures")
        found = [(one["kind"], one["count"], one["text"]) for one in groups]
        assert found[0] == ("send", 2, "TimeoutError: host <value> after <n> s"), "the largest first"
        assert set(found[1:]) == {("fetch", 1, "TimeoutError: host <value> after <n> s"), ("send", 1, "ValueError: no")}
        assert (groups[0]["example"], groups[0]["queues"]) == ("a2", ["mail"])
        assert groups[0]["first_at"] <= groups[0]["last_at"]
        shown = desk.run("jobs", "failures", "--limit", "1")
        lines = shown.stdout.splitlines()
        assert lines[0].split() == ["fingerprint", "jobs", "kind", "first", "last", "example", "error"]
        assert lines[1].endswith("TimeoutError: host <value> after <n> s")
        assert shown.stderr == "2 more groups: --limit 3\n"
        assert [one["kind"] for one in desk.document("jobs", "failures", "--queue", "other")] == ["fetch"]

    def test_a_group_is_redriven_by_its_fingerprint(self, desk: Desk) -> None:
        desk.fail("TimeoutError: after 30 s", "a1", "a2")
        desk.fail("ValueError: no", "c1")
        (group,) = [one for one in desk.document("jobs", "failures") if one["count"] == 2]
        chosen = ("--fingerprint", group["fingerprint"], "--reason", "their host is back")
        assert desk.document("jobs", "redrive", *chosen, "--dry-run") == swept("a1", "a2", dry_run=True)
        assert desk.states("a1", "a2") == [JobState.FAILED] * 2
        assert desk.document("jobs", "redrive", *chosen) == swept("a1", "a2")
        assert desk.states("a1", "a2", "c1") == [JobState.READY, JobState.READY, JobState.FAILED]

    def test_what_was_cancelled_is_not_among_the_failures(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "a1", "a2")
        desk.lines("jobs", "cancel", "a1", "--reason", "given up")
        assert {one["text"]: one["count"] for one in desk.document("jobs", "failures")} == {"ValueError: no": 1}

    def test_a_cancelled_job_is_redriven_by_its_id_and_a_flag_alone(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "a1", "a2")
        desk.lines("jobs", "cancel", "a1", "--reason", "they asked us not to write")
        assert desk.lines("jobs", "redrive", "--queue", "mail", "--reason", "their host is back") == ["a2"]
        result = desk.run("jobs", "redrive", "--id", "a1", "--reason", "their host is back")
        assert result.stdout == ""
        assert "a1 was skipped: it is CANCELLED: --include-cancelled redrives it" in result.stderr
        for chosen in (["--queue", "mail", "--include-cancelled"], ["--state", "cancelled"]):
            code, output = desk.refused("jobs", "redrive", *chosen, "--reason", "x")
            assert (code, "by id only: --id ID --include-cancelled" in output) == (2, True)
        assert desk.states("a1") == [JobState.CANCELLED]
        assert desk.lines("jobs", "redrive", "--id", "a1", "--include-cancelled", "--reason", "they do") == ["a1"]
        assert desk.states("a1") == [JobState.READY]
        assert desk.document("jobs", "show", "a1")["cancellation"]["reason"] == "they asked us not to write"

    # Redrive and purge

    def test_without_a_filter_nothing_is_swept_by_mistake(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "a1")
        for verb in ("redrive", "purge", "cancel"):
            code, output = desk.refused("jobs", verb, "--reason", "in a hurry")
            assert (code, "or --all" in output) == (2, True)
        assert desk.states("a1") == [JobState.FAILED]
        assert desk.lines("jobs", "redrive", "--all", "--reason", "on purpose") == ["a1"]

    def test_a_filter_may_be_a_time(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "a1")
        assert desk.document("jobs", "list", "--after", "2100-01-01T00:00:00Z")["jobs"] == []
        assert desk.lines("jobs", "redrive", "--before", "2100-01-01T00:00:00Z", "--reason", "old") == ["a1"]
        for wrong in ("soon", "2100-01-01T00:00:00"):
            assert desk.refused("jobs", "list", "--after", wrong)[0] == 2

    def test_a_rate_is_kept(self, desk: Desk) -> None:
        ids = [f"job-{number:02}" for number in range(12)]
        desk.fail("ValueError: no", *ids)
        began = time.monotonic()
        assert desk.lines("jobs", "redrive", "--queue", "mail", "--rate", "20/s", "--reason", "gently") == ids
        assert 0.5 <= time.monotonic() - began < 30
        assert set(desk.states(*ids)) == {JobState.READY}

    @pytest.mark.parametrize("rate", ["0/s", "fast", "5/week", "-1/s"])
    def test_a_rate_that_is_none_is_refused(self, desk: Desk, rate: str) -> None:
        code, output = desk.refused("jobs", "redrive", "--all", "--rate", rate, "--reason", "x")
        assert (code, "is not a rate: write it as 5/s" in output) == (2, True)

    def test_what_fails_again_while_a_sweep_goes_on_is_not_redriven_again(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.fail("ValueError: no", "a1", "a2", "a3")
        slept: list[float] = []

        def fail_at_once(_sweep: object, seconds: float) -> None:
            if not seconds:
                return
            slept.append(seconds)
            leases = desk.store.claim("worker-1", ["mail"], 10)
            desk.store.nack([NackReport(it.job.id, it.token, "ValueError: no", is_permanent=True) for it in leases])

        monkeypatch.setattr("leasemill.cli.bulk_action.Interruptible.sleep", fail_at_once)
        assert desk.lines("jobs", "redrive", "--queue", "mail", "--rate", "9/s", "--reason", "x") == ["a1", "a2", "a3"]
        assert len(slept) == 2
        assert desk.states("a1", "a2", "a3") == [JobState.FAILED, JobState.FAILED, JobState.READY]

    def test_an_interrupted_sweep_says_how_far_it_came_and_the_next_takes_the_rest(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.fail("ValueError: no", "a1", "a2", "a3")
        call = ("jobs", "redrive", "--queue", "mail", "--rate", "9/s", "--reason", "x")

        def interrupt(_sweep: object, seconds: float) -> None:
            if seconds:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("leasemill.cli.bulk_action.Interruptible.sleep", interrupt)
            result = desk.run(*call)
            as_json = desk.run(*call, "--json")
        assert (result.exit_code, result.stdout) == (1, "a1\n")
        assert result.stderr == "1 job redriven\nError: interrupted: run the same command again to continue\n"
        assert json.loads(as_json.stdout) == swept("a2"), "whole, also then"
        assert desk.lines(*call) == ["a3"]

    def test_more_than_a_page_is_swept_up_to_a_limit(self, desk: Desk) -> None:
        ids = [f"job-{number:04}" for number in range(1_100)]
        for some in (ids[:600], ids[600:]):
            desk.fail("ValueError: no", *some)
        assert desk.lines("jobs", "redrive", "--kind", "send", "--limit", "1050", "--reason", "not all") == ids[:1050]
        result = desk.run("jobs", "purge", "--kind", "send", "--reason", "the rest")
        assert (result.stdout.splitlines(), result.stderr) == (ids[1050:], "50 jobs purged\n")

    def test_jobs_that_run_or_have_succeeded_are_not_redriven(self, desk: Desk) -> None:
        desk.enqueue("done", "runs", "waits")
        desk.succeed(1)
        desk.store.claim("worker-1", ["mail"], 1)
        assert desk.lines("jobs", "redrive", "--all", "--reason", "x") == []
        assert desk.lines("jobs", "redrive", "--state", "succeeded", "--reason", "x") == []
        assert desk.states("done", "runs", "waits") == [JobState.SUCCEEDED, JobState.LEASED, JobState.READY]

    def test_jobs_are_cancelled_by_a_filter_and_ended_ones_left_alone(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "failed")
        desk.enqueue("a1", "a2")
        desk.enqueue("b1", queue="other")
        assert desk.lines("jobs", "cancel", "--queue", "mail", "--dry-run", "--reason", "x") == ["a1", "a2"]
        result = desk.run("jobs", "cancel", "--queue", "mail", "--reason", "they asked us not to write")
        assert (result.stdout.split(), result.stderr) == (["a1", "a2"], "2 jobs cancelled\n")
        assert desk.states("failed", "b1") == [JobState.FAILED, JobState.READY]
        assert desk.lines("jobs", "cancel", "--state", "failed", "--reason", "given up") == ["failed"]

    @pytest.mark.parametrize(
        ("verb", "lines"),
        [
            ("cancel", ["done was skipped: it is SUCCEEDED", "2 jobs cancelled"]),
            (
                "redrive",
                ["done was skipped: it is SUCCEEDED", "waits was skipped: it is READY", "1 job redriven"],
            ),
            ("purge", ["waits was skipped: it is READY: cancel it first", "2 jobs purged"]),
        ],
    )
    def test_a_job_that_was_named_and_left_alone_is_reported(self, desk: Desk, verb: str, lines: list[str]) -> None:
        desk.enqueue("done")
        desk.succeed(1)
        desk.fail("ValueError: no", "failed")
        desk.enqueue("waits")
        result = desk.run("jobs", verb, "done", "waits", "failed", "--id", "nothing", "--reason", "x")
        assert result.exit_code == 1
        assert sorted(result.stderr.splitlines()) == sorted(["nothing was skipped: there is no such job", *lines])

    # Lanes

    def blocked(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "head", lane="ann", policy=BLOCK)
        desk.enqueue("second", "third", lane="ann")
        desk.enqueue("free", lane="bob")

    def test_lanes_are_listed_with_what_their_heads_do(self, desk: Desk) -> None:
        self.blocked(desk)
        desk.enqueue("elsewhere", queue="other", lane="cy")
        desk.store.claim("worker-1", ["mail"], 1)
        lines = desk.lines("lanes", "list")
        assert [line.split()[:4] for line in lines[1:]] == [
            ["mail", "ann", "2", "head"],
            ["mail", "bob", "0", "free"],
            ["other", "cy", "0", "elsewhere"],
        ]
        assert "and blocks the lane until an operator acts" in lines[1]
        assert "worker worker-1 has held since" in lines[2]
        assert "waits for a worker" in lines[3]
        (only,) = desk.document("lanes", "list", "--blocked")
        assert (only["lane"], only["is_blocked"], only["waiting"], only["head"]) == ("ann", True, 2, "head")
        assert [one["lane"] for one in desk.document("lanes", "list", "--queue", "other")] == ["cy"]
        assert desk.run("lanes", "list", "--limit", "2").stderr == "there are more: use --limit or --queue\n"

    def test_a_lane_is_shown_with_those_that_wait(self, desk: Desk) -> None:
        self.blocked(desk)
        desk.enqueue(*[f"more-{number:02}" for number in range(30)], lane="ann")
        shown = desk.document("lanes", "show", "mail", "ann")
        assert shown["next"][:3] == ["second", "third", "more-00"]
        lines = desk.lines("lanes", "show", "mail", "ann")
        assert lines[1] == "state      BLOCKED until an operator acts"
        assert lines[-1].strip() == "… and 12 more"
        assert desk.refused("lanes", "show", "mail", "nobody") == (
            1,
            "Error: lane 'nobody' of queue 'mail' has no work, or does not exist\n",
        )

    def test_offsets_that_have_ended_are_shown_as_ranges(self, desk: Desk) -> None:
        for offset in (1, 2, 3, 4):
            (outcome,) = desk.store.acquire([AcquireRequest("stream", "p0", offset, "me", f"token-{offset}")])
            assert isinstance(outcome, Acquired)
            if offset < 4:
                desk.store.ack([AckReport(outcome.lease.job.id, outcome.lease.token)])
        assert "finished   1 to 3" in desk.lines("lanes", "show", "stream", "p0")
        assert desk.document("lanes", "show", "stream", "p0")["finished"] == [[1, 3]]

    @pytest.mark.parametrize(
        ("how", "done", "next_head", "state"),
        [
            ("redrive", "redriven", "head", [JobState.READY]),
            ("cancel", "cancelled", "second", [JobState.CANCELLED]),
            ("purge", "purged", "second", []),
        ],
    )
    def test_a_blocked_lane_is_let_go_on_in_three_ways_and_the_act_is_kept(
        self, desk: Desk, how: str, done: str, next_head: str, state: list[JobState]
    ) -> None:
        self.blocked(desk)
        call = ("lanes", "unblock", "mail", "ann", "--how", how, "--reason", "looked at it", "--by", "dee")
        assert desk.lines(*call) == [f"head: {done}; the head is {next_head}"]
        assert desk.states("head") == state
        (act,) = desk.document("actions", "--target", "head")
        assert (act["by"], act["verb"], act["reason"]) == ("dee", how, "looked at it")
        assert desk.succeed(10)[0] in {next_head, "free"}
        code, output = desk.refused(*call)
        assert (code, "is not blocked" in output or "has no work" in output) == (1, True)

    def test_a_lane_that_moves_is_not_unblocked(self, desk: Desk) -> None:
        desk.enqueue("free", lane="bob")
        code, output = desk.refused("lanes", "unblock", "mail", "bob", "--how", "cancel", "--reason", "x")
        assert code == 1
        assert "is not blocked: its head 'free' has been due since" in output
        assert desk.states("free") == [JobState.READY]

    def test_unblocking_the_last_job_of_a_lane_leaves_it_empty(self, desk: Desk) -> None:
        desk.fail("ValueError: no", "head", lane="ann", policy=BLOCK)
        shown = desk.document("lanes", "unblock", "mail", "ann", "--how", "cancel", "--reason", "x")
        assert (shown["job_id"], shown["head"]) == ("head", None)

    # Who did what

    def test_acts_are_listed_newest_first_and_filtered(self, desk: Desk) -> None:
        desk.enqueue("a1")
        desk.lines("queues", "pause", "mail", "--reason", "their host moves", "--by", "ann")
        desk.lines("queues", "set", "mail", "--max-retries", "9", "--reason", "flaky", "--by", "bob", "--json")
        desk.lines("queues", "resume", "mail", "--reason", "it is back", "--by", "ann")
        desk.lines("jobs", "cancel", "a1", "--reason", "a mistake", "--by", "cy")
        acts = desk.document("actions")
        assert [(act["by"], act["verb"], act["target"], act["reason"]) for act in acts] == [
            ("cy", "cancel", "a1", "a mistake"),
            ("ann", "resume", "mail", "it is back"),
            ("bob", "set_policy", "mail", "flaky"),
            ("ann", "pause", "mail", "their host moves"),
        ]
        assert [act["verb"] for act in desk.document("actions", "--by", "ann", "--limit", "1")] == ["resume"]
        assert [act["by"] for act in desk.document("actions", "--verb", "set_policy")] == ["bob"]
        shown = desk.run("actions", "--limit", "3")
        assert shown.stdout.splitlines()[0].split() == ["at", "by", "act", "target", "reason"]
        assert shown.stderr == "1 more: --limit 4\n"
