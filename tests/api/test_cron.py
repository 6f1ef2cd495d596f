"""When schedules are due: expressions, zones, changes of the clocks, intervals."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from leasemill import next_ticks
from leasemill.api import cron
from leasemill.api.cron import COUNTED, due_ticks, micros, next_tick_after, parse, parse_zone
from leasemill.errors import Invalid
from leasemill.kernel.model import SECOND
from leasemill.kernel.schedule import hand_id, tick_id
from leasemill.testing.rules import rule
from tests.api.cron_oracle import NOT_ASKED, ZONES, Years, cronsim, debian, expressions, ours, shifts

BERLIN = "Europe/Berlin"


def local(expression: str | timedelta, after: str, count: int, tz: str = BERLIN) -> list[str]:
    """The next ticks as month-day, time and offset, after a local time."""
    instant = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(tz))
    return [f"{tick:%m-%d %H:%M %z}" for tick in next_ticks(expression, tz=tz, after=instant, count=count)]


@rule("P7")
def test_a_time_that_the_spring_leaves_out_is_the_first_after_the_gap() -> None:
    ticks = local("30 2 * * *", "2030-03-30T03:00", 2)
    assert ticks == ["03-31 03:00 +0200", "04-01 02:30 +0200"]


@rule("P7")
def test_two_times_in_the_gap_are_one_tick() -> None:
    assert local("0,30 2 * * *", "2030-03-31T00:00", 2) == ["03-31 03:00 +0200", "04-01 02:00 +0200"]


@rule("P7")
def test_a_wildcard_time_in_the_gap_does_not_occur() -> None:
    assert local("*/15 2 * * *", "2030-03-31T00:00", 2) == ["04-01 02:00 +0200", "04-01 02:15 +0200"]


@rule("P7")
def test_a_fixed_time_that_occurs_twice_is_the_first_of_the_two() -> None:
    assert local("30 2 * * *", "2030-10-27T00:00", 2) == ["10-27 02:30 +0200", "10-28 02:30 +0100"]
    assert local("0,30 2 * * *", "2030-10-27T00:00", 3) == [
        "10-27 02:00 +0200",
        "10-27 02:30 +0200",
        "10-28 02:00 +0100",
    ]


@rule("P7")
def test_wildcard_times_follow_elapsed_time() -> None:
    quarters = local("*/15 * * * *", "2030-10-27T01:59", 12)
    assert [tick[6:] for tick in quarters[:9]] == [
        *("02:00 +0200", "02:15 +0200", "02:30 +0200", "02:45 +0200"),
        *("02:00 +0100", "02:15 +0100", "02:30 +0100", "02:45 +0100", "03:00 +0100"),
    ]
    hourly = local("0 * * * *", "2030-10-26T23:59", 26)
    assert [tick[:5] for tick in hourly].count("10-27") == 25
    assert [tick[:5] for tick in local("0 * * * *", "2030-03-30T23:59", 25)].count("03-31") == 23


@rule("P7")
def test_a_shift_of_half_an_hour() -> None:
    zone = "Australia/Lord_Howe"  # 02:00 becomes 02:30, and back
    assert local("15 2 * * *", "2030-10-06T00:00", 1, zone) == ["10-06 02:30 +1100"]
    assert local("*/30 * * * *", "2030-10-06T01:00", 3, zone) == [
        "10-06 01:30 +1030",
        "10-06 02:30 +1100",
        "10-06 03:00 +1100",
    ]
    assert local("45 1 * * *", "2030-04-07T00:00", 2, zone) == ["04-07 01:45 +1100", "04-08 01:45 +1030"]
    assert local("45 * * * *", "2030-04-07T01:00", 3, zone) == [
        "04-07 01:45 +1100",
        "04-07 01:45 +1030",
        "04-07 02:45 +1030",
    ]


@rule("P7")
@pytest.mark.parametrize(
    ("zone", "day", "first"),
    [("Africa/Cairo", "2030-04-26", "04-26 01:00 +0300"), ("Asia/Beirut", "2030-03-31", "03-31 01:00 +0300")],
)
def test_a_midnight_that_does_not_exist(zone: str, day: str, first: str) -> None:
    before = datetime.fromisoformat(day) - timedelta(hours=3)
    assert local("0 0 * * *", before.isoformat(), 1, zone) == [first]


@rule("P7")
def test_a_day_that_does_not_exist() -> None:
    assert local("0 12 * * *", "2011-12-29T13:00", 1, "Pacific/Apia") == ["12-31 00:00 +1400"]


@rule("P7")
def test_either_day_is_enough_if_both_are_restricted() -> None:
    ticks = next_ticks("0 0 13 * fri", after=datetime(2030, 9, 1, tzinfo=UTC), count=5)
    assert [(tick.day, tick.isoweekday()) for tick in ticks] == [(6, 5), (13, 5), (20, 5), (27, 5), (4, 5)]
    only_one = next_ticks("0 0 13 * *", after=datetime(2030, 9, 1, tzinfo=UTC), count=2)
    assert [tick.day for tick in only_one] == [13, 13]


@rule("P7")
def test_a_leap_day() -> None:
    ticks = next_ticks("0 0 29 2 *", after=datetime(2096, 3, 1, tzinfo=UTC), count=2)
    assert [tick.year for tick in ticks] == [2104, 2108]


@rule("P7")
def test_intervals_are_aligned_to_the_epoch() -> None:
    after = datetime(2030, 1, 1, 12, 3, 4, tzinfo=UTC)
    assert next_ticks(timedelta(minutes=5), after=after)[0] == datetime(2030, 1, 1, 12, 5, tzinfo=UTC)
    assert next_ticks("@every 5m", after=after, count=3) == next_ticks(timedelta(minutes=5), after=after, count=3)
    through = next_ticks(timedelta(hours=1), after=datetime(2030, 10, 26, 23, tzinfo=UTC), tz=BERLIN, count=5)
    assert {(later - earlier) for earlier, later in pairwise(through)} <= {timedelta(hours=1), timedelta(0)}
    assert len({micros(tick) for tick in through}) == 5


@pytest.mark.parametrize(
    ("expression", "same"),
    [
        ("@daily", "0 0 * * *"),
        ("0 0 * * SUN", "0 0 * * 7"),
        ("0 0 * * fri-sun", "0 0 * * 5-7"),
        ("0 0 1 JAN-mar *", "0 0 1 1-3 *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("  0   0 * *  * ", "0 0 * * *"),
        ("5-5/2 0 * * *", "5 0 * * *"),
    ],
)
def test_ways_to_write_the_same(expression: str, same: str) -> None:
    after = datetime(2030, 1, 1, tzinfo=UTC)
    assert next_ticks(expression, after=after, count=50) == next_ticks(same, after=after, count=50)


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 0 *"),
        *("* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "1,,2 * * * *", "-1 * * * *"),
        *("*-5 * * * *", "1/a * * * *", "* * * * mon-", "@reboot", "0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *"),
        *("@every 0s", "@every", "@every 5 weeks", "1.5 * * * *", "٣ * * * *", "* * L * *", "* * * * 5#3"),
    ],
)
def test_a_wrong_expression_is_refused_with_a_hint(expression: str) -> None:
    with pytest.raises(Invalid, match=r"write|use|never due"):
        parse(expression)


@pytest.mark.parametrize("period", [timedelta(0), timedelta(milliseconds=500), timedelta(days=-1), timedelta.max])
def test_a_wrong_interval_is_refused(period: timedelta) -> None:
    with pytest.raises(Invalid, match="whole seconds"):
        parse(period)


@pytest.mark.parametrize("zone", ["Berlin", "", "../etc/passwd", "Europe/Nowhere"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(Invalid, match="Europe/Berlin"):
        parse_zone(zone)


def test_a_system_without_a_zone_database_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr(cron, "ZoneInfo", missing)
    with pytest.raises(Invalid, match="tzdata"):
        parse_zone(BERLIN)
    assert parse_zone("UTC") is UTC


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(Invalid, match="no time zone"):
        next_ticks("@daily", after=datetime(2030, 1, 1))  # noqa: DTZ001  (what is refused)


# What is due ---------------------------------------------------------------------------------------------------

NOON = 1_893_499_200 * SECOND


def test_what_is_due_begins_with_the_next_tick_and_ends_at_the_wall() -> None:
    due = due_ticks("* * * * *", "UTC", NOON, NOON + 150 * SECOND, keep=20)
    assert due == ((NOON, NOON + 60 * SECOND, NOON + 120 * SECOND), 0, NOON + 180 * SECOND)
    assert due_ticks("* * * * *", "UTC", NOON, NOON, keep=20) == ((NOON,), 0, NOON + 60 * SECOND)


def test_of_many_due_ticks_the_latest_are_named_and_the_others_counted() -> None:
    due = due_ticks("* * * * *", "UTC", NOON, NOON + 3 * 86_400 * SECOND, keep=20)
    assert (len(due.ticks), due.passed) == (20, 3 * 1_440 + 1 - 20)
    assert due.ticks[-1] == NOON + 3 * 86_400 * SECOND


def test_a_clock_that_was_decades_behind_is_not_counted_tick_by_tick() -> None:
    due = due_ticks("@every 1s", "UTC", SECOND, NOON, keep=20)
    assert due.ticks == tuple(range(NOON - 19 * SECOND, NOON + 1, SECOND))
    assert (due.passed >= COUNTED, due.next_at) == (True, NOON + SECOND)
    yearly = due_ticks("0 0 29 2 *", BERLIN, micros(datetime(1972, 2, 29, tzinfo=UTC)), NOON, keep=3)
    assert yearly.next_at == next_tick_after("0 0 29 2 *", BERLIN, NOON)


def test_the_id_of_a_tick_is_its_time_in_utc() -> None:
    for instant in (
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2000, 2, 29, 23, 59, 59, tzinfo=UTC),
        datetime(2030, 1, 31, 12, tzinfo=UTC),
        datetime(2100, 3, 1, 1, 2, 3, tzinfo=UTC),
        datetime(9990, 12, 31, 0, 0, 1, tzinfo=UTC),
    ):
        assert tick_id("a", micros(instant)) == f"cron/a/{instant:%Y-%m-%dT%H:%M:%SZ}"
    assert hand_id("a", micros(datetime(2030, 1, 1, tzinfo=UTC)) + 7) == "cron/a/2030-01-01T00:00:00.000007Z"


# Other opinions ------------------------------------------------------------------------------------------------

IS_FULL = bool(os.environ.get("LEASEMILL_FULL_ORACLE"))
EXPRESSIONS, YEARS, DAYS = (200, 10, 120) if IS_FULL else (3, 2, 20)
SINGLE_STEP = re.compile(r"\b(\d+)-\1/")
SHIFTS = (
    *(("Europe/Berlin", day) for day in ("2030-03-31", "2030-10-27")),
    *(("Australia/Lord_Howe", day) for day in ("2030-10-06", "2030-04-07")),
    *(("Antarctica/Troll", day) for day in ("2030-03-31", "2030-10-27")),
    *(("Africa/Cairo", day) for day in ("2030-04-26", "2030-10-31")),
    *(("America/Havana", day) for day in ("2030-03-10", "2030-11-03")),
    ("Pacific/Apia", "2011-12-30"),
)


def drawn(seed: int, count: int) -> list[str]:
    """Expressions that are due at some time."""

    def is_due(expression: str) -> bool:
        try:
            parse(expression)
        except Invalid:
            return False
        return True

    return list(islice(filter(is_due, expressions(seed)), count))


@rule("P7")
@pytest.mark.timeout(7_200 if IS_FULL else 60)
@pytest.mark.parametrize("zone", ZONES)
def test_as_a_library_says(zone: str) -> None:
    """Around every shift of the zone, where they could disagree, and on many other days."""
    name, two_days = ZoneInfo(zone), timedelta(days=2)
    shifted = list(shifts(name, 2024, 10))
    around = [(day - two_days, day + two_days) for day in shifted[: 2 * YEARS]]
    quiet = (datetime(2027, 12, 20, tzinfo=UTC), datetime(2027, 12, 20, tzinfo=UTC) + timedelta(days=DAYS))
    for expression in drawn(ZONES.index(zone), EXPRESSIONS):
        for begin, until in (*around, quiet):
            mine = ours(expression, name, begin, until)
            if zone in NOT_ASKED:
                assert (begin, until) == quiet or mine == debian(expression, name, begin, until), (expression, begin)
                continue
            theirs = cronsim(expression, name, begin, until)
            if mine == theirs:
                continue
            assert SINGLE_STEP.search(expression) or all(
                any(abs(tick - day) <= two_days for day in shifted) for tick in set(mine) ^ set(theirs)
            ), (expression, begin)
            if (begin, until) != quiet:
                assert mine == debian(expression, name, begin, until), (expression, begin)


@rule("P7")
@pytest.mark.timeout(7_200 if IS_FULL else 60)
@pytest.mark.parametrize(("zone", "day"), SHIFTS)
def test_as_debians_rule_says(zone: str, day: str) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=2)
    until = begin + timedelta(days=4)
    name = ZoneInfo(zone)
    fixed = ["30 2 * * *", "0,30 2 * * *", "*/15 2 * * *", "15 * * * *", "0 0 * * *", "45 1 * * *", "30 0 * * *"]
    for expression in [*fixed, *drawn(7, 40 if IS_FULL else 8)]:
        assert ours(expression, name, begin, until) == debian(expression, name, begin, until), expression


@rule("P7")
@pytest.mark.timeout(7_200 if IS_FULL else 60)
@pytest.mark.parametrize("zone", ZONES if IS_FULL else ("Europe/Berlin", "Australia/Lord_Howe", "Africa/Cairo"))
def test_as_debians_rule_says_at_every_minute_of_years(zone: str) -> None:
    name = ZoneInfo(zone)
    chosen = drawn(1_000 + ZONES.index(zone), EXPRESSIONS)
    for year in range(2024, 2024 + (YEARS if IS_FULL else 1)):
        begin, until = (datetime(one, 1, 1, tzinfo=UTC) for one in (year, year + 1))
        written_out = Years(name, begin, until)
        for expression in chosen:
            assert ours(expression, name, begin, until) == written_out.debian(expression), (expression, year)


@pytest.mark.parametrize(("zone", "day"), SHIFTS)
def test_both_ways_to_write_debians_rule_out_agree(zone: str, day: str) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1)
    until, name = begin + timedelta(days=2), ZoneInfo(zone)
    written_out = Years(name, begin, until)
    for expression in ["30 2 * * *", "*/15 2 * * *", "0 0 * * *", "45 1 * * *", "* * * * *", *drawn(9, 10)]:
        assert written_out.debian(expression) == debian(expression, name, begin, until), expression
