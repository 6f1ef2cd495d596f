"""Acts on lanes, schedules, groups, limits and causes of failures: done, recorded, and undone, on every store."""

from __future__ import annotations

import pytest

from leasemill.dashboard import ViewerRole
from leasemill.dashboard.actions import ACTIONS
from leasemill.dashboard.actions.limits import as_limit_rate, rate_text
from leasemill.dashboard.forms import COOKIE, token_of
from leasemill.errors import Invalid
from leasemill.kernel import commands as c
from leasemill.kernel.model import SECOND, JobState, LimitTerms, Verb
from leasemill.kernel.schedule import Schedule
from leasemill.operator.fingerprint import fingerprint
from leasemill.store.base import Store
from tests.dashboard.conftest import Desk, desk_on
from tests.dashboard.filling import Filled, fill
from tests.dashboard.filling_control import fill_control, fill_groups, fill_limits, fill_schedules
from tests.dashboard.test_actions import finished, state
from tests.dashboard.test_trouble_pages import fail

UNBLOCK = "/acts/unblock-lane?queue=lanes&lane=lane+plain+text"


def latest(store: Store) -> tuple[Verb, str, str]:
    action = store.actions(limit=1)[0]
    return action.verb, action.by, action.reason


def schedule(store: Store, name: str = "report") -> Schedule:
    found = store.run(c.GetSchedule(name))
    assert found is not None
    return found


def limit(store: Store, name: str) -> c.LimitView:
    found = store.limit(name, limit=1)
    assert found is not None
    return found


# Lanes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "after", "head"),
    [
        ("redrive", JobState.READY, "head-1"),
        ("cancel", JobState.CANCELLED, "behind-1"),
        ("purge", None, "behind-1"),
    ],
)
def test_a_lane_is_unblocked(
    desk: Desk, filled: Filled, store: Store, how: str, after: JobState | None, head: str
) -> None:
    assert "1 job waits behind it." in desk.get(UNBLOCK).text
    desk.act(UNBLOCK, how=how)
    view = store.lane("lanes", "lane plain text")
    assert view is not None
    assert not view.is_blocked
    assert view.head is not None
    assert (view.head.spec.id, state(store, "head-1")) == (head, after)
    assert latest(store) == (Verb(how), "ann", "because")
    assert "blocked until" not in desk.get("/lanes?queue=lanes&lane=lane+plain+text").text


def test_a_lane_that_is_not_blocked_is_left_alone(desk: Desk, filled: Filled, store: Store) -> None:
    assert "is not an action" in desk.act(UNBLOCK, 400, how="explode").text
    desk.act(UNBLOCK, how="redrive")
    assert "It is not blocked" in desk.get(UNBLOCK).text
    assert "is not blocked any more" in desk.act(UNBLOCK, 400, how="purge").text
    assert state(store, "head-1") is JobState.READY
    assert "has no work" in desk.get("/acts/unblock-lane?queue=lanes&lane=nobody", 404).text


# Schedules -------------------------------------------------------------------------------------------------------


def test_a_schedule_is_paused_and_resumed(desk: Desk, store: Store) -> None:
    fill_schedules(store)
    desk.act("/acts/pause-schedule?name=report")
    pause = schedule(store).pause
    assert pause is not None
    assert (pause.by, pause.reason) == ("ann", "because")
    assert "ann paused it: because" in desk.get("/acts/resume-schedule?name=report").text
    desk.act("/acts/resume-schedule?name=report")
    assert schedule(store).pause is None
    assert latest(store) == (Verb.RESUME_SCHEDULE, "ann", "because")


def test_a_schedule_is_run_now(desk: Desk, store: Store) -> None:
    fill_schedules(store)
    before = schedule(store, "sweep")
    assert "It stays paused." in desk.get("/acts/run-schedule?name=sweep").text
    desk.act("/acts/run-schedule?name=sweep")
    after = schedule(store, "sweep")
    assert (after.fired, after.next_at) == (before.fired + 1, before.next_at)
    assert after.last_job_id is not None
    assert state(store, after.last_job_id) is JobState.READY
    assert latest(store) == (Verb.FIRE, "ann", "because")
    assert "there is no schedule 'nobody'" in desk.get("/acts/run-schedule?name=nobody", 404).text


# Groups ----------------------------------------------------------------------------------------------------------


def test_a_group_is_cancelled_with_the_groups_in_it(desk: Desk, store: Store) -> None:
    fill_groups(store)
    desk.act("/acts/cancel-group?id=group+plain+text")
    action = finished(desk.dashboard.bulk_actions.all()[0])
    assert action.trouble is None
    view = store.group("group plain text")
    assert view is not None
    assert (view.cancelled, view.failed, view.unfinished) == (2, 1, 0)
    assert (action.done, action.expected) == (2, 2)
    assert view.sealed_at is not None
    assert state(store, "member-2") is JobState.CANCELLED
    assert {(one.by, one.reason) for one in store.actions(limit=2)} == {("ann", "because")}
    inner = store.group("inner plain text")
    assert inner is not None
    assert inner.sealed_at is not None


def test_a_group_that_is_over_is_not_cancelled(desk: Desk, store: Store) -> None:
    fill_groups(store)
    page = desk.get("/acts/cancel-group?id=over+plain+text")
    assert [one for one in page.find("button", type="submit") if one.text == "Cancel the group"] == []
    assert "is over" in desk.act("/acts/cancel-group?id=over+plain+text", 400).text
    assert "there is no group 'nobody'" in desk.get("/acts/cancel-group?id=nobody", 404).text


def test_a_group_is_sealed_and_its_failed_members_are_redriven(desk: Desk, store: Store) -> None:
    fill_groups(store)
    desk.act("/acts/seal-group?id=group+plain+text")
    view = store.group("group plain text")
    assert view is not None
    assert view.sealed_at is not None
    assert latest(store) == (Verb.SEAL_GROUP, "ann", "because")
    desk.act("/acts/redrive-all?group=group+plain+text")
    assert finished(desk.dashboard.bulk_actions.all()[0]).done == 1
    assert state(store, "member-1") is JobState.READY


# Limits ----------------------------------------------------------------------------------------------------------


def test_a_limit_is_set_and_cleared(desk: Desk, store: Store) -> None:
    fill_limits(store)
    desk.act("/acts/set-limit?name=api", places="7", rate="3/10s", burst="")
    assert limit(store, "api").terms == LimitTerms(7, 3, 10 * SECOND, 1)
    asked = desk.get("/acts/set-limit?name=api")
    assert (asked.value("places"), asked.value("rate"), asked.value("burst")) == ("7", "3/10s", "1")
    assert latest(store) == (Verb.SET_LIMIT, "ann", "because")
    assert "apply again: 1 place" in desk.get("/acts/clear-limit?name=api").text
    desk.act("/acts/clear-limit?name=api")
    assert limit(store, "api").terms == LimitTerms(places=1)
    assert latest(store) == (Verb.CLEAR_LIMIT, "ann", "because")


def test_an_empty_field_of_a_limit_changes_nothing(desk: Desk, store: Store) -> None:
    fill_limits(store)
    desk.act("/acts/set-limit?name=mails", places="9", rate="", burst="")
    assert limit(store, "mails").terms == LimitTerms(9, 100, 60 * SECOND, 10)


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"places": "many"}, "is not a number"),
        ({"places": "-1"}, "is not a number"),
        ({"rate": "fast"}, "is not a rate"),
        ({"burst": "3"}, "give the rate too"),
        ({}, "without numbers"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(desk: Desk, store: Store, fields: dict[str, str], trouble: str) -> None:
    fill_limits(store)
    given = {"places": "", "rate": "", "burst": "", **fields}
    assert trouble in desk.act("/acts/set-limit?name=api", 400, **given).text
    assert limit(store, "api").terms == LimitTerms(places=1)


def test_an_operators_own_limit_is_gone_when_it_is_cleared(desk: Desk, filled: Filled, store: Store) -> None:
    store.set_limit("queue:mail", LimitTerms(places=1), by="ann", reason="because")
    asked = desk.get("/acts/set-limit?name=queue%3Amail")
    assert asked.find("input", name="rate") == []
    desk.act("/acts/clear-limit?name=queue%3Amail&next=/limits%3Fname%3Dqueue%253Amail")
    assert store.limit("queue:mail", limit=1) is None
    assert desk.get("/limits").find("h1")


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", LimitTerms()),
        ("50/s", LimitTerms(None, 50, SECOND, 1)),
        ("5000/h", LimitTerms(None, 5000, 3_600 * SECOND, 1)),
        ("3/10s", LimitTerms(None, 3, 10 * SECOND, 1)),
    ],
)
def test_the_rate_of_a_limit_is_read_as_it_is_written(text: str, terms: LimitTerms) -> None:
    expected = None if terms.rate is None else (terms.rate, terms.per_us)
    assert as_limit_rate(text) == expected
    assert rate_text(terms) == text


@pytest.mark.parametrize("text", ["0/s", "5", "5/0s", "5/week", "-1/s", "1.5/s", "٣/s"])
def test_what_is_no_rate_of_a_limit_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not a rate"):
        as_limit_rate(text)


# Causes of failures ----------------------------------------------------------------------------------------------


def test_a_cause_is_redriven_at_a_rate_and_another_is_left_alone(desk: Desk, store: Store) -> None:
    timeouts = fail(store, 5, "Timeout: after {} s")
    (other,) = fail(store, 1, "KeyError: 'a'")
    page = desk.get("/failures")
    links = [one.attributes["href"] for one in page.find("a", class_="button ") if one.text == "Redrive"]
    assert len(links) == 2
    assert "Dry run: 5 jobs match" in desk.get(links[0]).text
    desk.act(links[0], rate="1000/s")
    assert finished(desk.dashboard.bulk_actions.all()[0]).done == 5
    assert {state(store, job_id) for job_id in timeouts} == {JobState.READY}
    assert state(store, other) is JobState.FAILED
    assert desk.get("/failures").rows() == [fingerprint(found) for found in [store.job(other)] if found]


def test_a_cause_is_purged_and_jobs_that_succeeded_later_are_left_alone(desk: Desk, store: Store) -> None:
    first, second = fail(store, 2, "Timeout: after {} s")
    store.redrive(c.JobFilter(job_ids=(first,)), by="ann", reason="again")
    (lease,) = store.claim("worker", ["mail"], 1)
    store.ack([c.AckReport(first, lease.token)])
    page = desk.get("/failures")
    (link,) = [one.attributes["href"] for one in page.find("a", class_="button harm") if one.text == "Purge"]
    desk.act(link)
    assert finished(desk.dashboard.bulk_actions.all()[0]).done == 1
    assert (state(store, first), state(store, second)) == (JobState.SUCCEEDED, None)
    assert desk.get("/failures").rows() == []


def test_a_sweep_that_is_under_way_is_shown_with_the_failures(memory: Store) -> None:
    desk = desk_on(memory)
    fail(memory, 50, "Timeout: after {} s")
    desk.act("/acts/redrive-all", rate="1/h")
    page = desk.get("/failures")
    assert "Redrive in progress" in page.text
    desk.dashboard.close()


# Who may ---------------------------------------------------------------------------------------------------------


def test_nobody_acts_who_may_only_look(memory: Store) -> None:
    fill(memory)
    fill_control(memory)
    before = memory.actions()
    desk = desk_on(memory, ViewerRole.READ)
    desk.get("/")
    token = token_of(desk.client.cookie(COOKIE))
    fields = "queue=lanes&lane=lane+plain+text&name=report&id=group+plain+text"
    for name in ACTIONS:
        path = f"/acts/{name}?{fields}"
        assert desk.client.get(path).status_code == 403, name
        form = {"form_token": token, "reason": "because", "how": "purge", "places": "0"}
        response = desk.client.post(path, data=form, headers={"Origin": "http://testserver"})
        assert response.status_code == 403, name
    assert memory.actions() == before
    desk.dashboard.close()


@pytest.mark.parametrize(
    "path",
    [
        UNBLOCK,
        "/acts/pause-schedule?name=report",
        "/acts/run-schedule?name=report",
        "/acts/cancel-group?id=group+plain+text",
        "/acts/set-limit?name=mails",
        "/acts/clear-limit?name=mails",
    ],
)
def test_an_act_without_a_reason_is_refused(memory: Store, path: str) -> None:
    fill(memory)
    fill_control(memory)
    before = memory.actions()
    desk = desk_on(memory)
    assert "A reason is required" in desk.act(path, 400, reason=" ").text
    assert memory.actions() == before
    desk.dashboard.close()
