"""Schedules, groups, limits and the audit show what the store holds, on every store."""

from __future__ import annotations

import pytest

from leasemill.api import schedule_commands
from leasemill.dashboard.pages.audit import lines_of, link_of
from leasemill.dashboard.pages.groups import row_of, state_of
from leasemill.dashboard.pages.schedules import next_ticks, why_skipped
from leasemill.kernel import commands as c
from leasemill.kernel.model import Action, JobSpec, LimitTerms, Rules, Verb
from leasemill.kernel.schedule import Schedule, ScheduleSpec, Skip, SkipReason
from leasemill.kernel.transitions.actions import DECLARED
from leasemill.store.base import Store
from tests.dashboard.conftest import Desk
from tests.dashboard.filling import Filled
from tests.dashboard.filling_control import MINUTE, fill_groups, fill_limits, fill_schedules
from tests.dashboard.test_trouble_pages import hrefs, row, tiles

# Schedules -------------------------------------------------------------------------------------------------------


def test_schedules_show_their_runs_and_the_ticks_that_made_no_job(desk: Desk, store: Store) -> None:
    fill_schedules(store)
    schedule = store.run(c.GetSchedule("report"))
    assert schedule is not None
    assert schedule.last_job_id is not None
    page = desk.get("/schedules")
    skip = f"report {schedule.last_at}"
    assert page.rows() == ["report", "sweep", skip]
    assert "ready" in row(page, "report")
    assert "paused" in row(page, "sweep")
    assert "the job before it had not ended" in row(page, skip)
    assert schedule.last_job_id in row(page, skip)
    assert (tiles(page)["Jobs made"], tiles(page)["Ticks without a job"]) == ("1", "1")


def test_a_schedule_has_a_page_of_its_own(desk: Desk, store: Store) -> None:
    fill_schedules(store)
    page = desk.get("/schedules?name=report")
    schedule = store.run(c.GetSchedule("report"))
    assert schedule is not None
    expected = [str(schedule.next_at + number * MINUTE) for number in range(5)]
    assert page.rows() == [*expected, f"report {schedule.last_at}"]
    assert "hunter2" not in page.text
    assert "reason plain text" in page.text
    paused = desk.get("/schedules?name=sweep").text
    assert "by ann plain text: reason plain text" in paused
    assert "there is no schedule 'nobody'" in desk.get("/schedules?name=nobody", 404).text


def test_a_schedule_that_no_worker_declares_says_so(desk: Desk, store: Store) -> None:
    spec = ScheduleSpec("old", "0 3 * * *", "UTC", JobSpec("", "reports", "report"))
    schedule_commands.set_schedule(store, spec, by="worker", reason=DECLARED)
    assert "not declared" in row(desk.get("/schedules"), "old")
    assert "No running worker declares it." in desk.get("/schedules?name=old").text


@pytest.mark.parametrize("reason", list(SkipReason))
def test_every_skip_has_words(reason: SkipReason) -> None:
    spec = ScheduleSpec("one", "* * * * *", "UTC", JobSpec("", "mail", "send"))
    assert why_skipped(Schedule(spec, 1, 0, 0, 0), Skip(0, reason, "job"))


def test_a_zone_that_this_machine_does_not_know_leaves_the_next_tick() -> None:
    spec = ScheduleSpec("one", "* * * * *", "Mars/Olympus", JobSpec("", "mail", "send"))
    assert next_ticks(Schedule(spec, 1, 60_000_000, 0, 0)) == [60_000_000]


# Groups ----------------------------------------------------------------------------------------------------------


def test_groups_show_how_far_they_are(desk: Desk, store: Store) -> None:
    fill_groups(store)
    page = desk.get("/groups")
    assert page.rows() == ["group plain text", "inner plain text"]
    assert "2/5" in row(page, "group plain text")
    every = desk.get("/groups?show=all")
    assert every.rows() == ["group plain text", "inner plain text", "over plain text"]
    assert "succeeded" in row(every, "over plain text")
    assert "Cancel" not in row(every, "over plain text").split()


def test_a_group_has_a_page_of_its_own(desk: Desk, store: Store) -> None:
    fill_groups(store)
    page = desk.get("/groups?id=group+plain+text")
    assert page.rows() == ["member-1", "member-2", "member-3", "inner plain text"]
    assert "2 of 5 members ended" in page.text
    assert "not enqueued, or removed since" in page.text
    assert "/groups?id=group+plain+text" in hrefs(desk.get("/groups?id=inner+plain+text"))
    assert "there is no group 'nobody'" in desk.get("/groups?id=nobody", 404).text


def test_the_bar_of_a_group_has_a_part_for_each_end(store: Store) -> None:
    fill_groups(store)
    view = store.group("group plain text")
    assert view is not None
    assert [(one.tone, one.left, one.width) for one in row_of(view).shares] == [
        ("succeeded", 0.0, 20.0),
        ("failed", 20.0, 20.0),
    ]
    assert state_of(view) == "open"
    store.seal_group(view.id)
    sealed = store.group(view.id)
    assert sealed is not None
    assert state_of(sealed) == "running"


def test_many_groups_are_shown_in_pages(desk: Desk, store: Store) -> None:
    for number in range(60):
        store.create_group(f"group-{number:03}")
    first = desk.get("/groups")
    (following,) = [one.attributes["href"] for one in first.find("a", rel="next")]
    assert first.rows() + desk.get(following).rows() == [f"group-{number:03}" for number in range(60)]


# Limits ----------------------------------------------------------------------------------------------------------


def test_limits_show_their_places_and_whose_numbers_hold(desk: Desk, store: Store) -> None:
    fill_limits(store)
    page = desk.get("/limits")
    assert page.rows() == ["api", "mails"]
    assert "1 (1 per key)" in row(page, "api")
    assert "1/4" in row(page, "mails")
    assert "100/min, burst 10" in row(page, "mails")
    assert "operator" in row(page, "mails")
    assert "Clear" not in row(page, "api")


def test_a_limit_has_a_page_of_its_own(desk: Desk, store: Store) -> None:
    fill_limits(store)
    page = desk.get("/limits?name=api")
    assert page.rows() == ["key plain text"]
    assert "1/1" in row(page, "key plain text")
    assert "limited-0" in row(page, "key plain text")
    assert "ann plain text" in desk.get("/limits?name=mails").text
    assert "there is no limit 'nobody'" in desk.get("/limits?name=nobody", 404).text


def test_many_limits_are_shown_in_pages(desk: Desk, store: Store) -> None:
    store.declare_limits({f"limit-{number:03}": LimitTerms(places=1) for number in range(130)}, by="worker")
    first = desk.get("/limits")
    (following,) = [one.attributes["href"] for one in first.find("a", rel="next")]
    assert first.rows() + desk.get(following).rows() == [f"limit-{number:03}" for number in range(130)]


def test_the_limit_of_a_queue_leads_to_the_queue(desk: Desk, filled: Filled, store: Store) -> None:
    store.set_limit("queue:mail", LimitTerms(places=0), by="ann", reason="because")
    page = desk.get("/limits?name=queue%3Amail")
    assert "/queue?name=mail" in hrefs(page)
    assert "0/0" in page.text


# Audit -----------------------------------------------------------------------------------------------------------


def test_every_act_is_shown_with_who_and_why(desk: Desk, filled: Filled, store: Store) -> None:
    store.pause("mail", by="bert", reason="the provider is down")
    page = desk.get("/audit")
    first = " ".join(page.find("tr")[1].text.split())
    for text in ("bert", "pause", "mail", "the provider is down"):
        assert text in first
    assert len(desk.get("/audit?by=bert").rows()) == 1
    assert len(desk.get("/audit?verb=cancel").rows()) == 2
    assert len(desk.get("/audit?target=zombie").rows()) == 2
    assert "No action matches." in desk.get("/audit?by=nobody").text


def test_acts_on_many_jobs_are_one_line(desk: Desk, store: Store) -> None:
    ids = [f"job-{number:03}" for number in range(120)]
    store.enqueue([JobSpec(job_id, "mail", "send") for job_id in ids])
    store.cancel(ids, by="ann", reason="not needed")
    page = desk.get("/audit")
    assert len(page.rows()) == 1
    assert "120 times" in page.text
    assert "and 100 more" in page.text


def test_lines_are_cut_where_the_person_the_act_or_the_reason_changes() -> None:
    def act(at: int, verb: Verb, by: str, reason: str = "r") -> Action:
        return Action(at, verb, by, f"target-{at}", reason)

    acts = [act(5, Verb.CANCEL, "a"), act(4, Verb.CANCEL, "a"), act(3, Verb.PURGE, "a"), act(2, Verb.PURGE, "b")]
    lines = lines_of([*acts, act(1, Verb.PURGE, "b", "s")])
    assert [(one.count, one.last.at, one.first_at) for one in lines] == [(2, 5, 4), (1, 3, 3), (1, 2, 2), (1, 1, 1)]
    assert lines[0].targets == ["target-5", "target-4"]


def test_many_acts_are_shown_in_pages(desk: Desk, store: Store) -> None:
    store.enqueue([JobSpec("one", "mail", "send")])
    for number in range(70):
        store.pause("mail", by="ann", reason=f"reason {number}")
        store.resume("mail", by="ann", reason=f"reason {number}")
    first = desk.get("/audit")
    (following,) = [one.attributes["href"] for one in first.find("a", rel="next")]
    assert (len(first.rows()), len(desk.get(following).rows())) == (100, 40)


@pytest.mark.parametrize(
    ("verb", "target", "link"),
    [
        (Verb.CANCEL, "one", ("/job", {"id": "one"})),
        (Verb.PAUSE, "mail", ("/jobs", {"queue": "mail"})),
        (Verb.SET_LIMIT, "api", ("/limits", {"name": "api"})),
        (Verb.SEAL_GROUP, "g", ("/groups", {"id": "g"})),
        (Verb.FIRE, "cron/report", ("/schedules", {"name": "report"})),
    ],
)
def test_what_an_act_was_done_to_has_a_page(verb: Verb, target: str, link: tuple[str, dict[str, str]]) -> None:
    assert link_of(verb, target) == link


def test_members_that_are_read_are_bounded(desk: Desk, store: Store) -> None:
    store.create_group("large")
    store.enqueue([JobSpec(f"job-{number:03}", "mail", "send", rules=Rules(group="large")) for number in range(100)])
    assert desk.get("/groups?id=large").rows() == [f"job-{number:03}" for number in range(20)]
