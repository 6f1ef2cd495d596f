"""Acts are done, recorded with who and why, and undone, on every store."""

from __future__ import annotations

import time
from functools import partial

import pytest

from leasemill.dashboard.actions import ACTIONS
from leasemill.dashboard.actions.jobs import as_rate
from leasemill.dashboard.bulk_actions import BulkAction, BulkActions, BulkVerb, Selection, count, matching
from leasemill.errors import Invalid, Refused
from leasemill.kernel import commands as c
from leasemill.kernel.model import ACTIONS_KEPT, QUEUE_LIMIT, JobSpec, JobState, OnFailure, Policy, Verb
from leasemill.store.base import Store
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.filling import Filled
from tests.lab.starting import close_while_starting

PATIENCE_S = 60.0


def queue(store: Store, name: str = "mail") -> c.QueueView:
    return next(view for view in store.queues() if view.name == name)


def state(store: Store, job_id: str) -> JobState | None:
    job = store.job(job_id)
    return None if job is None else job.state


def finished(action: BulkAction) -> BulkAction:
    deadline = time.monotonic() + PATIENCE_S
    while not action.is_over:
        assert time.monotonic() < deadline, "the action does not end"
        time.sleep(0.01)
    return action


def the_bulk_action(desk: Desk) -> BulkAction:
    page = desk.get("/sweeps")
    (row,) = page.rows()
    link = next(one for one in page.find("a") if one.attributes["href"].endswith(row))
    assert desk.get(link.attributes["href"]).find("h1")
    found = desk.dashboard.bulk_actions.find(row)
    assert found is not None
    return found


# Queues ----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(desk: Desk, filled: Filled, store: Store) -> None:
    desk.act("/acts/pause-queue?queue=mail&next=/queues")
    assert queue(store).is_paused
    assert "paused" in desk.get("/queues").text
    desk.act("/acts/resume-queue?queue=mail")
    assert not queue(store).is_paused
    assert [(one.verb, one.by, one.reason) for one in store.actions(limit=2)] == [
        (Verb.RESUME, "ann", "because"),
        (Verb.PAUSE, "ann", "because"),
    ]


def test_what_was_done_is_shown_once(desk: Desk, filled: Filled) -> None:
    desk.act("/acts/pause-queue?queue=mail&next=/queues")
    (notice,) = [one for one in desk.get("/queues").elements if "data-notice" in one.attributes]
    assert notice.text == "Queue mail paused."
    assert [one for one in desk.get("/queues").elements if "data-notice" in one.attributes] == []


def test_a_policy_is_set_and_cleared(desk: Desk, filled: Filled, store: Store) -> None:
    path = "/acts/set-queue-policy?queue=mail"
    desk.act(path, max_retries="7", lease_ttl_us="45", on_failure="block")
    assert queue(store).policy == Policy(max_retries=7, lease_ttl_us=45_000_000, on_failure=OnFailure.BLOCK)
    asked = desk.get(path)
    assert (asked.value("max_retries"), asked.value("lease_ttl_us")) == ("7", "45")
    desk.act(path, max_retries="", lease_ttl_us="", on_failure="")
    assert queue(store).policy == Policy()


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_retries", "many"), ("lease_ttl_us", "long"), ("lease_ttl_us", "-1"), ("timeout_us", "nan")],
)
def test_a_policy_that_makes_no_sense_is_refused_and_kept_in_the_form(
    desk: Desk, filled: Filled, store: Store, field: str, value: str
) -> None:
    page = desk.act("/acts/set-queue-policy?queue=mail", 400, **{field: value, "max_expirations": "3"})
    assert page.value("max_expirations") == "3"
    assert page.value("reason") == "because"
    assert queue(store).policy is None


def test_a_limit_is_set_and_removed(desk: Desk, filled: Filled, store: Store) -> None:
    desk.act("/acts/set-queue-limit?queue=mail", places="3")
    view = store.limit(QUEUE_LIMIT + "mail", limit=1)
    assert view is not None
    assert view.terms.places == 3
    assert "0 of 3" in desk.get("/queues").text
    desk.act("/acts/set-queue-limit?queue=mail", places="")
    assert store.limit(QUEUE_LIMIT + "mail", limit=1) is None
    assert "0 of 3" not in desk.get("/queues").text


def test_an_act_on_an_unknown_queue_is_not_found(desk: Desk) -> None:
    assert "there is no queue 'nobody'" in desk.get("/acts/pause-queue?queue=nobody", 404).text


# Jobs that are named ---------------------------------------------------------------------------------------------


def test_a_failed_job_is_redriven_and_cancelled_and_redriven_again(desk: Desk, filled: Filled, store: Store) -> None:
    job = filled.failed
    desk.act(f"/acts/redrive-jobs?job={job}")
    assert state(store, job) is JobState.READY
    desk.act(f"/acts/cancel-jobs?job={job}")
    assert state(store, job) is JobState.CANCELLED
    desk.act(f"/acts/redrive-jobs?job={job}")
    assert state(store, job) is JobState.READY


def test_a_selection_is_acted_on_and_the_rest_is_left_alone(desk: Desk, filled: Filled, store: Store) -> None:
    path = f"/acts/purge-jobs?job={filled.succeeded}&job={filled.cancelled}&job={filled.ready}"
    asked = desk.get(path)
    assert "Purge 2 jobs" in asked.text
    assert "1 job of 3 would be left alone: READY; cancel them first" in asked.text
    desk.act(path)
    assert state(store, filled.succeeded) is None
    assert state(store, filled.cancelled) is None
    assert state(store, filled.ready) is JobState.READY


def test_a_selection_that_no_act_fits_has_no_button(desk: Desk, filled: Filled) -> None:
    page = desk.get(f"/acts/redrive-jobs?job={filled.ready}")
    assert [one for one in page.find("button", type="submit") if one.text == "Redrive"] == []


def test_an_empty_selection_is_refused(desk: Desk) -> None:
    assert "choose 1 to" in desk.get("/acts/cancel-jobs", 400).text


# Everything that matches -----------------------------------------------------------------------------------------


def test_everything_that_matches_is_counted_first_and_then_redriven(desk: Desk, filled: Filled, store: Store) -> None:
    path = "/acts/redrive-all?queue=mail"
    assert "Dry run: 1 job matches and is DEAD or FAILED." in desk.get(path).text
    assert state(store, filled.failed) is JobState.FAILED
    desk.act(path)
    action = finished(the_bulk_action(desk))
    assert (action.done, action.left_alone, action.trouble) == (1, 0, None)
    assert state(store, filled.failed) is JobState.READY
    assert state(store, "head-1") is JobState.FAILED
    assert (store.actions(limit=1)[0].by, store.actions(limit=1)[0].reason) == ("ann", "because")


def test_everything_that_matches_is_cancelled_and_purged(desk: Desk, store: Store) -> None:
    store.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(1_200)])
    store.enqueue([JobSpec("other", "paper", "send")])
    desk.act("/acts/cancel-all?queue=mail&id=job-")
    assert finished(desk.dashboard.bulk_actions.all()[0]).done == 1_200
    assert state(store, "other") is JobState.READY
    desk.act("/acts/purge-all?state=cancelled")
    assert finished(desk.dashboard.bulk_actions.all()[0]).done == 1_200
    assert store.totals().counts[JobState.CANCELLED] == 0


def test_a_dry_run_ends_in_time_and_says_so(store: Store) -> None:
    store.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(1_200)])
    found = count(store, BulkVerb.CANCEL, Selection(c.JobFilter()), for_s=0.0)
    assert not found.is_all
    assert 0 < found.count < 1_200
    whole = count(store, BulkVerb.CANCEL, Selection(c.JobFilter()), for_s=PATIENCE_S)
    assert (whole.count, whole.is_all, len(whole.examples)) == (1_200, True, 10)


def test_a_paced_sweep_is_stopped(memory: Store) -> None:
    desk = desk_on(memory)
    memory.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(1_000)])
    desk.act("/acts/cancel-all", rate="1/min")
    action = the_bulk_action(desk)
    path = f"/acts/stop-sweep?sweep={action.id}"
    assert desk.get(path).find("input", name="reason") == [], "nothing is recorded, so nothing is asked"
    desk.act(path, reason="")
    assert "Stopped by ann" in desk.get(f"/sweeps/{action.id}").text
    desk.dashboard.close()
    assert action.is_over
    assert action.is_stopped
    assert action.done <= 1


def test_a_sweep_of_more_jobs_than_actions_are_kept_is_one_action(desk: Desk, store: Store) -> None:
    ids = [f"job-{number:04}" for number in range(ACTIONS_KEPT + 200)]
    store.enqueue([JobSpec(job_id, "mail", "send") for job_id in ids])
    store.pause("mail", by="bob", reason="deploying")
    desk.act("/acts/cancel-all?queue=mail")
    assert finished(the_bulk_action(desk)).done == len(ids)
    cancelled, paused = store.actions()
    assert (cancelled.verb, cancelled.count, cancelled.by) == (Verb.CANCEL, len(ids), "ann")
    assert paused.verb is Verb.PAUSE
    shown = desk.get("/audit").text
    assert "1,200 times" in shown
    assert "and 1,180 more, since" in shown
    assert "job-0019" in shown
    assert desk.get("/audit?target=job-0007").rows() != []


def test_only_so_many_sweeps_run_at_a_time(memory: Store) -> None:
    memory.enqueue([JobSpec(f"job-{number}", "mail", "send") for number in range(100)])
    bulk_actions = BulkActions(memory)
    chosen = Selection(c.JobFilter())
    for _ in range(2):
        bulk_actions.start(BulkVerb.CANCEL, chosen, "all", "ann", "because", 0.01)
    with pytest.raises(Refused, match="already running"):
        bulk_actions.start(BulkVerb.CANCEL, chosen, "all", "ann", "because", None)
    bulk_actions.close()


def test_sweeps_are_closed_while_one_is_being_started(memory: Store) -> None:
    memory.enqueue([JobSpec("job", "mail", "send")])
    bulk_actions, chosen = BulkActions(memory), Selection(c.JobFilter())
    start = partial(bulk_actions.start, BulkVerb.CANCEL, chosen, "all", "ann", "because", 0.01)
    close_while_starting("leasemill-bulk-action", start, bulk_actions.close)
    assert all(one.is_over for one in bulk_actions.all())


def test_a_sweep_ends_at_the_jobs_that_existed_when_it_began(store: Store) -> None:
    store.enqueue([JobSpec(f"job-{number:03}", "mail", "send") for number in range(600)])
    pages = matching(store, BulkVerb.CANCEL, Selection(c.JobFilter()))
    first = next(pages)
    store.enqueue([JobSpec("later", "mail", "send")])
    assert first + [job_id for ids in pages for job_id in ids] == [f"job-{number:03}" for number in range(600)]


@pytest.mark.parametrize(("text", "rate"), [("", None), ("5/s", 5.0), ("60/min", 1.0), ("3600/h", 1.0), ("2", 2.0)])
def test_a_rate_is_read(text: str, rate: float | None) -> None:
    assert as_rate(text) == rate


@pytest.mark.parametrize("text", ["0", "fast", "5/day", "-1/s", "1e9", "5 / s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a rate"):
        as_rate(text)


def test_there_is_no_act_without_a_name(desk: Desk) -> None:
    assert desk.client.get("/acts/nothing").status_code == 404
    assert all(name == act.name for name, act in ACTIONS.items())
