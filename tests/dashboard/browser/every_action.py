"""Every act that an operator does from a page, in a browser: asked about, confirmed with a reason, seen on the page and
in the audit, and undone where it can be undone. Run by `make browser`.

Unblocking a lane, and a worker made quiet and resumed, are in the short look that is part of `make test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from leasemill.kernel.model import QUEUE_LIMIT, JobSpec, JobState, LimitTerms, Policy
from leasemill.store.base import Store
from leasemill.store.factory import open_store
from tests.dashboard.browser.serving import PATIENCE_MS, serving, signed_in, working
from tests.dashboard.filling import fill
from tests.dashboard.filling_control import fill_control
from tests.dashboard.test_actions import queue, state
from tests.dashboard.test_control_actions import limit, schedule

MANY: Final = [f"bulk-{number:02}" for number in range(12)]
SIZE: Final = {"width": 1440, "height": 900}
expect.set_options(timeout=PATIENCE_MS)


@dataclass(frozen=True)
class Operator:
    """Somebody at the browser, with one window to act in and one that shows the audit."""

    page: Page
    audit: Page
    base: str

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)
        self.page.wait_for_selector('[data-live-status][data-state="live"]')

    def row(self, key: str) -> Locator:
        return self.page.locator(f'tbody tr[data-key="{key}"]')

    def head(self, name: str) -> Locator:
        return self.page.locator(".head").get_by_role("link", name=name, exact=True)

    @property
    def content(self) -> Locator:
        return self.page.locator("#content")

    def ask(self, control: Locator, heading: str) -> Locator:
        control.click()
        dialog = self.page.locator("dialog#act")
        expect(dialog.locator("h1")).to_have_text(heading)
        return dialog

    def answer(self, button: str, reason: str, **fields: str) -> None:
        """Without a reason the browser sends nothing."""
        dialog = self.page.locator("dialog#act")
        for name, value in fields.items():
            dialog.locator(f'input[name="{name}"]').fill(value)
        confirm = dialog.get_by_role("button", name=button, exact=True)
        confirm.click()
        expect(dialog.locator('input[name="reason"]:invalid')).to_be_focused()
        dialog.locator('input[name="reason"]').fill(reason)
        confirm.click()

    def noticed(self, text: str) -> None:
        expect(self.page.locator("[data-notice]")).to_have_text(text)

    def recorded(self, words: str, target: str, reason: str) -> None:
        """It is the latest line of the audit."""
        self.audit.reload()
        row = self.audit.locator("tbody tr").first
        expect(row.locator("td.reason")).to_have_text(reason)
        expect(row.locator("a.tag")).to_have_text(words)
        expect(row.locator(".target")).to_contain_text(target)
        expect(row).to_contain_text("ann")

    def swept(self, words: str) -> None:
        """An act on many is followed to its end."""
        self.page.wait_for_url("**/sweeps/*")
        expect(self.content).to_contain_text("Finished.")
        expect(self.content.locator(".big")).to_have_text(words)


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory:") as opened:
        fill(opened)
        fill_control(opened)
        opened.enqueue([JobSpec(job_id, "bulk", "send") for job_id in MANY])
        yield opened


@pytest.fixture
def operator(browser: Browser, store: Store) -> Iterator[Operator]:
    with serving(store) as dashboard:
        page, observed = signed_in(browser, dashboard, viewport=SIZE)
        audit, also_observed = signed_in(browser, dashboard, viewport=SIZE)
        audit.goto(f"{dashboard.base}/audit")
        yield Operator(page, audit, dashboard.base)
        observed.check(page)
        also_observed.check(audit)
        page.context.close()
        audit.context.close()


def states(store: Store, job_ids: list[str]) -> set[JobState | None]:
    return {state(store, job_id) for job_id in job_ids}


# Queues ----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(operator: Operator, store: Store) -> None:
    operator.open("/queues")
    row = operator.row("mail")
    operator.ask(row.get_by_role("link", name="Pause"), "Pause queue mail")
    operator.answer("Pause", "the mail server is being moved")
    operator.noticed("Queue mail paused.")
    expect(row.locator("th .tag")).to_have_text("paused")
    assert queue(store).is_paused
    operator.recorded("pause", "mail", "the mail server is being moved")

    operator.ask(row.get_by_role("link", name="Resume"), "Resume queue mail")
    operator.answer("Resume", "it has been moved")
    operator.noticed("Queue mail resumed.")
    expect(row.locator("th .tag")).to_have_count(0)
    assert not queue(store).is_paused
    operator.recorded("resume", "mail", "it has been moved")


def test_a_limit_of_a_queue_is_set_and_removed(operator: Operator, store: Store) -> None:
    operator.open("/queues")
    control = operator.row("mail").get_by_role("link", name="Limit")
    operator.ask(control, "Limit of queue mail")
    operator.answer("Set", "three at a time", places="3")
    operator.noticed("Queue mail limited to 3 jobs at a time.")
    expect(operator.row("mail")).to_contain_text("0 of 3")
    assert limit(store, QUEUE_LIMIT + "mail").terms == LimitTerms(3)
    operator.recorded("set limit", "queue:mail", "three at a time")

    expect(operator.ask(control, "Limit of queue mail").locator('input[name="places"]')).to_have_value("3")
    operator.answer("Set", "as many as there are", places="")
    operator.noticed("Limit of queue mail removed.")
    expect(operator.row("mail")).not_to_contain_text("0 of 3")
    assert store.limit(QUEUE_LIMIT + "mail", limit=1) is None
    operator.recorded("clear limit", "queue:mail", "as many as there are")


def test_a_policy_is_set_and_cleared(operator: Operator, store: Store) -> None:
    operator.open("/queues")
    control = operator.row("mail").get_by_role("link", name="Policy")
    operator.ask(control, "Policy of queue mail")
    operator.answer("Set", "the server is slow", max_retries="7", lease_ttl_us="45")
    operator.noticed("Policy of queue mail set.")
    expect(operator.row("mail").locator(".policy")).to_contain_text("7")
    assert queue(store).policy == Policy(max_retries=7, lease_ttl_us=45_000_000)
    operator.recorded("set policy", "mail", "the server is slow")

    operator.ask(control, "Policy of queue mail")
    operator.answer("Set", "it is quick again", max_retries="", lease_ttl_us="")
    operator.noticed("Policy of queue mail cleared.")
    expect(operator.row("mail").locator(".policy")).to_have_text("–")
    assert queue(store).policy == Policy()
    operator.recorded("set policy", "mail", "it is quick again")


# Schedules and limits --------------------------------------------------------------------------------------------


def test_a_schedule_is_paused_and_resumed(operator: Operator, store: Store) -> None:
    operator.open("/schedules")
    row = operator.row("report")
    operator.ask(row.get_by_role("link", name="Pause"), "Pause schedule report")
    operator.answer("Pause", "nobody reads it")
    operator.noticed("Schedule report paused.")
    expect(row.locator("td .tag")).to_have_text("paused")
    assert schedule(store).pause is not None
    operator.recorded("pause schedule", "report", "nobody reads it")

    dialog = operator.ask(row.get_by_role("link", name="Resume"), "Resume schedule report")
    expect(dialog).to_contain_text("ann paused it: nobody reads it")
    operator.answer("Resume", "somebody reads it")
    expect(operator.page.locator("[data-notice]")).to_contain_text("Schedule report resumed: next tick ")
    expect(row.locator("td .tag")).to_have_count(0)
    assert schedule(store).pause is None
    operator.recorded("resume schedule", "report", "somebody reads it")


def test_a_schedule_is_run_now_and_its_job_is_cancelled(operator: Operator, store: Store) -> None:
    operator.open("/schedules")
    operator.ask(operator.row("sweep").get_by_role("link", name="Run now"), "Run schedule sweep now")
    operator.answer("Run now", "before the audit")
    expect(operator.page.locator("[data-notice]")).to_contain_text("Schedule sweep made job ")
    operator.recorded("fire", "sweep", "before the audit")
    job_id = schedule(store, "sweep").last_job_id
    assert job_id is not None
    assert state(store, job_id) is JobState.READY

    operator.open("/schedules?name=sweep")
    operator.page.locator("dl.facts").get_by_role("link", name=job_id).click()
    operator.ask(operator.head("Cancel"), f"Cancel {job_id}")
    operator.answer("Cancel job", "it was run by mistake")
    operator.noticed("1 job cancelled.")
    assert state(store, job_id) is JobState.CANCELLED
    operator.recorded("cancel", job_id, "it was run by mistake")


def test_a_limit_is_set_and_cleared(operator: Operator, store: Store) -> None:
    operator.open("/limits")
    row = operator.row("api")
    operator.ask(row.get_by_role("link", name="Set"), "Set limit api")
    operator.answer("Set", "they allow more now", places="7")
    operator.noticed("Limit api: 7 places.")
    expect(row).to_contain_text("operator")
    assert limit(store, "api").terms == LimitTerms(places=7)
    operator.recorded("set limit", "api", "they allow more now")

    dialog = operator.ask(row.get_by_role("link", name="Clear"), "Clear limit api")
    expect(dialog).to_contain_text("The numbers from the code apply again: 1 place.")
    operator.answer("Clear", "they do not any more")
    operator.noticed("Limit api cleared: the numbers from the code apply.")
    expect(row).not_to_contain_text("operator")
    assert limit(store, "api").terms == LimitTerms(places=1)
    operator.recorded("clear limit", "api", "they do not any more")


# Jobs ------------------------------------------------------------------------------------------------------------


def test_a_job_is_cancelled_and_redriven(operator: Operator, store: Store) -> None:
    operator.open("/job?id=ready-1")
    operator.ask(operator.head("Cancel"), "Cancel ready-1")
    operator.answer("Cancel job", "ordered twice")
    operator.noticed("1 job cancelled.")
    expect(operator.page.locator(".explain h2 .state")).to_have_text("cancelled")
    assert state(store, "ready-1") is JobState.CANCELLED
    operator.recorded("cancel", "ready-1", "ordered twice")

    operator.ask(operator.head("Redrive"), "Redrive ready-1")
    operator.answer("Redrive job", "ordered once after all")
    operator.noticed("1 job redriven.")
    expect(operator.head("Cancel")).to_be_visible()
    assert state(store, "ready-1") is JobState.READY
    operator.recorded("redrive", "ready-1", "ordered once after all")


def select(operator: Operator, *job_ids: str) -> Locator:
    """The bar of what can be done to the jobs that are chosen."""
    for job_id in job_ids:
        operator.page.get_by_label(f"Select {job_id}", exact=True).check()
    bar = operator.page.locator("[data-chosen]")
    expect(bar.locator("[data-count]")).to_have_text(str(len(job_ids)))
    return bar


def test_a_selection_is_cancelled_and_redriven_and_the_rest_is_left_alone(operator: Operator, store: Store) -> None:
    chosen = MANY[2:5]
    operator.open("/jobs?queue=bulk")
    operator.ask(select(operator, *chosen).get_by_role("button", name="Cancel"), "Cancel 3 jobs")
    operator.answer("Cancel jobs", "three too many")
    operator.noticed("3 jobs cancelled.")
    assert states(store, chosen) == {JobState.CANCELLED}
    assert states(store, [one for one in MANY if one not in chosen]) == {JobState.READY}
    operator.recorded("cancel", chosen[0], "three too many")

    operator.ask(select(operator, *chosen).get_by_role("button", name="Redrive"), "Redrive 3 jobs")
    operator.answer("Redrive jobs", "they were needed")
    operator.noticed("3 jobs redriven.")
    assert states(store, MANY) == {JobState.READY}
    operator.recorded("redrive", chosen[0], "they were needed")


def test_a_selection_is_purged_as_far_as_it_has_ended(operator: Operator, store: Store) -> None:
    operator.open("/jobs?queue=mail")
    bar = select(operator, "succeeded-1", "cancelled-1", "ready-1")
    dialog = operator.ask(bar.get_by_role("button", name="Purge"), "Purge 2 jobs")
    expect(dialog).to_contain_text("This cannot be undone.")
    expect(dialog).to_contain_text("1 job of 3 would be left alone: READY; cancel them first.")
    operator.answer("Purge jobs", "it holds an address")
    operator.noticed("2 jobs purged. 1 job left alone.")
    expect(operator.row("ready-1")).to_be_visible()
    expect(operator.row("succeeded-1")).to_have_count(0)
    assert states(store, ["succeeded-1", "cancelled-1"]) == {None}
    assert state(store, "ready-1") is JobState.READY
    operator.recorded("purge", "succeeded-1", "it holds an address")


# Everything that matches -----------------------------------------------------------------------------------------


def test_everything_that_matches_is_counted_and_cancelled_and_redriven(operator: Operator, store: Store) -> None:
    operator.open("/jobs?queue=bulk")
    dialog = operator.ask(operator.head("Cancel"), "Cancel 12 jobs")
    expect(dialog).to_contain_text("Dry run: 12 jobs match and are LEASED or READY.")
    expect(dialog).to_contain_text("Filter: queue bulk.")
    dialog.get_by_role("link", name="Go back").click()
    expect(dialog).to_be_hidden()
    assert states(store, MANY) == {JobState.READY}, "a dry run changes nothing"

    operator.ask(operator.head("Cancel"), "Cancel 12 jobs")
    operator.answer("Cancel all", "the import was wrong")
    operator.swept("12 of 12 done")
    assert states(store, MANY) == {JobState.CANCELLED}
    assert state(store, "ready-1") is JobState.READY
    operator.recorded("cancel", "12 times", "the import was wrong")

    operator.open("/jobs?queue=bulk")
    operator.page.get_by_label("Select all jobs on this page").check()
    operator.ask(operator.page.locator("[data-chosen]").get_by_role("button", name="Redrive"), "Redrive 12 jobs")
    operator.answer("Redrive jobs", "it was right")
    operator.noticed("12 jobs redriven.")
    assert states(store, MANY) == {JobState.READY}
    operator.recorded("redrive", "12 times", "it was right")


def test_everything_that_failed_for_one_cause_is_redriven_and_cancelled(operator: Operator, store: Store) -> None:
    operator.open("/failures")
    row = operator.page.locator("tbody tr", has_text="ValueError: plain text")
    dialog = operator.ask(row.get_by_role("link", name="Redrive"), "Redrive 1 job")
    expect(dialog).to_contain_text("Dry run: 1 job matches and is DEAD or FAILED.")
    operator.answer("Redrive all", "the value is in order", rate="100/s")
    operator.swept("1 of 1 done")
    assert state(store, "failed-1") is JobState.READY
    assert state(store, "head-1") is JobState.FAILED
    operator.recorded("redrive", "failed-1", "the value is in order")

    operator.open("/jobs?id=failed-1")
    operator.ask(operator.head("Cancel"), "Cancel 1 job")
    operator.answer("Cancel all", "it is not")
    operator.swept("1 of 1 done")
    assert state(store, "failed-1") is JobState.CANCELLED
    operator.recorded("cancel", "failed-1", "it is not")


def test_everything_that_matches_is_purged(operator: Operator, store: Store) -> None:
    store.cancel(MANY, by="bob", reason="not needed")
    operator.open("/jobs?queue=bulk&state=cancelled")
    dialog = operator.ask(operator.head("Purge"), "Purge 12 jobs")
    expect(dialog).to_contain_text("This cannot be undone.")
    operator.answer("Purge all", "they hold addresses")
    operator.swept("12 of 12 done")
    assert states(store, MANY) == {None}
    operator.recorded("purge", "12 times", "they hold addresses")


def test_an_act_on_many_is_stopped_under_way(operator: Operator, store: Store) -> None:
    operator.open("/jobs?queue=bulk")
    operator.ask(operator.head("Cancel"), "Cancel 12 jobs")
    operator.answer("Cancel all", "the import was wrong", rate="1/h")
    operator.page.wait_for_url("**/sweeps/*")
    expect(operator.content).to_contain_text("In progress")
    dialog = operator.ask(operator.head("Stop"), "Stop")
    expect(dialog.locator('input[name="reason"]')).to_have_count(0)
    dialog.get_by_role("button", name="Stop").click()
    expect(operator.content).to_contain_text("Stopped by ann.")
    left = [one for one in MANY if state(store, one) is JobState.READY]
    assert len(left) >= len(MANY) - 1


# Groups and workers ----------------------------------------------------------------------------------------------


def test_the_failed_of_a_group_are_redriven_and_it_is_sealed_and_cancelled(operator: Operator, store: Store) -> None:
    group = "group plain text"
    operator.open("/groups?id=group+plain+text")
    operator.ask(operator.head("Redrive the failed"), "Redrive 1 job")
    operator.answer("Redrive all", "the disk is back")
    operator.swept("1 of 1 done")
    assert state(store, "member-1") is JobState.READY
    operator.recorded("redrive", "member-1", "the disk is back")

    operator.open("/groups?id=group+plain+text")
    operator.ask(operator.head("Seal"), f"Seal group {group}")
    operator.answer("Seal", "its producer is gone")
    operator.noticed(f"Group {group} sealed.")
    expect(operator.head("Seal")).to_have_count(0)
    operator.recorded("seal group", group, "its producer is gone")

    operator.ask(operator.head("Cancel"), f"Cancel group {group}")
    operator.answer("Cancel the group", "nobody waits for it")
    operator.swept("3 of 3 done")
    view = store.group(group)
    assert view is not None
    assert (view.succeeded, view.cancelled, view.unfinished) == (2, 3, 0), "the group in it is empty: it has succeeded"
    operator.audit.reload()
    expect(operator.audit.locator("tbody tr").first.locator("td.reason")).to_have_text("nobody waits for it")


def test_a_worker_is_stopped(operator: Operator, store: Store) -> None:
    with working(store, "web-1") as thread:
        operator.open("/workers")
        operator.ask(operator.row("web-1").get_by_role("link", name="Stop"), "Stop worker web-1")
        operator.answer("Stop", "it is being replaced")
        operator.noticed("Worker web-1 was asked to stop.")
        operator.recorded("stop worker", "web-1", "it is being replaced")
        thread.join(PATIENCE_MS / 1_000)
        assert not thread.is_alive()
        expect(operator.row("web-1")).to_have_count(0)
