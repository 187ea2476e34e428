"""Due times: cron in time zones, periods, one time; what is refused."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise

import pytest

from workflows.schedules.domain.timetable import (
    EARLIEST,
    LATEST,
    CronRefused,
    Timetable,
    UnknownTimezone,
    check_cron,
    jitter_of,
    words_of,
    zone_of,
)

BERLIN = zone_of("Europe/Berlin")


def local(table: Timetable, after: datetime, count: int) -> list[str]:
    return [due.astimezone(table.zone).strftime("%d %H:%M %Z") for due in islice(table.after(after), count)]


def test_a_fixed_time_in_the_repeated_hour_is_due_once() -> None:
    table = Timetable(cron="30 2 * * *", zone=BERLIN)
    assert local(table, datetime(2026, 10, 24, 12, tzinfo=UTC), 2) == ["25 02:30 CEST", "26 02:30 CET"]


def test_a_search_from_within_the_repeated_hour_does_not_go_back() -> None:
    table = Timetable(cron="0,30 2 * * *", zone=BERLIN)
    second_0210 = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert local(table, second_0210, 1) == ["26 02:00 CET"]


def test_a_fixed_time_in_the_skipped_hour_is_due_when_that_is_over() -> None:
    table = Timetable(cron="30 2 * * *", zone=BERLIN)
    assert local(table, datetime(2026, 3, 28, 12, tzinfo=UTC), 2) == ["29 03:00 CEST", "30 02:30 CEST"]


def test_two_times_in_the_skipped_hour_are_one_moment() -> None:
    table = Timetable(cron="0,30 2 * * *", zone=BERLIN)
    dues = list(islice(table.after(datetime(2026, 3, 28, 12, tzinfo=UTC)), 5))
    assert all(first < second for first, second in pairwise(dues))


def test_each_due_time_follows_the_one_from_which_the_search_goes_on() -> None:
    table = Timetable(cron="*/20 1-3 * * *", zone=BERLIN)
    after = datetime(2026, 10, 24, 12, tzinfo=UTC)
    at_once = list(islice(table.after(after), 30))
    one_by_one = []
    for _ in at_once:
        found = table.next_after(after)
        assert found is not None
        one_by_one.append(after := found)
    assert one_by_one == at_once


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Australia/Lord_Howe", datetime(2026, 4, 4, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, tzinfo=UTC)),
        ("Asia/Pyongyang", datetime(2018, 5, 4, tzinfo=UTC)),
        ("Pacific/Apia", datetime(2011, 12, 29, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 10, 24, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize(
    ("cron", "minutes", "hours"),
    [
        ("30 * * * *", (30,), range(24)),
        ("0 */2 * * *", (0,), range(0, 24, 2)),
        ("* 2 * * *", range(60), (2,)),
        ("*/30 1-3 * * *", (0, 30), (1, 2, 3)),
    ],
)
def test_an_expression_with_a_star_is_due_whenever_clocks_show_its_time(
    zone: str, day: datetime, cron: str, minutes: Collection[int], hours: Collection[int]
) -> None:
    table, end = Timetable(cron=cron, zone=zone_of(zone)), day + timedelta(days=2)
    expected, at = [], day
    while at <= end:
        clock = at.astimezone(table.zone)
        if clock.minute in minutes and clock.hour in hours:
            expected.append(at)
        at += timedelta(minutes=1)
    assert table.between(day, end, 10_000) == expected
    assert all(table.next_after(first) == second for first, second in pairwise(expected))


def test_a_rare_expression_with_a_star_is_due_on_its_day_after_many_changes() -> None:
    table = Timetable(cron="*/30 0 29 2 *", zone=zone_of("Australia/Lord_Howe"))
    assert [due.isoformat() for due in islice(table.after(datetime(2026, 6, 1, tzinfo=UTC)), 3)] == [
        "2028-02-28T13:00:00+00:00",
        "2028-02-28T13:30:00+00:00",
        "2032-02-28T13:00:00+00:00",
    ]


def test_a_fixed_time_of_a_skipped_day_is_due_when_that_is_over() -> None:
    table = Timetable(cron="0 12 30 12 *", zone=zone_of("Pacific/Apia"))
    assert table.next_after(datetime(2011, 12, 1, tzinfo=UTC)) == datetime(2011, 12, 30, 10, tzinfo=UTC)


def test_a_period_counts_from_its_anchor_within_start_and_end() -> None:
    anchor = datetime(2026, 1, 1, tzinfo=UTC)
    end = anchor + timedelta(seconds=90)
    table = Timetable(every_seconds=30, anchor=anchor, start=anchor, end=end)
    assert [(due - anchor).seconds for due in table.after(anchor - timedelta(days=1))] == [0, 30, 60, 90]
    assert table.between(anchor, end, 2) == [anchor, anchor + timedelta(seconds=30)]
    assert table.next_after(end) is None


def test_one_time_is_due_once() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert list(Timetable(at=at).after(at - timedelta(1))) == [at]
    assert list(Timetable(at=at).after(at)) == []


@pytest.mark.parametrize(
    "text", ["* * * *", "* * * * * *", "0 0 31 2 *", "61 * * * *", "x", "", "*" + " " * 300, "0 0 * * 8,,"]
)
def test_a_cron_expression_that_is_invalid_or_never_matches_is_refused(text: str) -> None:
    with pytest.raises(CronRefused):
        check_cron(text)


@pytest.mark.parametrize(
    "name", ["Europe", "Mars/Olympus", "../../etc/passwd", "localtime", "/etc/hosts", "a\0b"]
)
def test_an_unknown_time_zone_is_refused(name: str) -> None:
    with pytest.raises(UnknownTimezone):
        zone_of(name)


@pytest.mark.parametrize(
    "table",
    [
        Timetable(cron="0 * * * *", zone=zone_of("America/New_York")),
        Timetable(cron="0 * * * *", zone=zone_of("Asia/Tokyo")),
        Timetable(cron="0 0 * 2 1#5"),
        Timetable(every_seconds=3600.0, anchor=datetime.min.replace(tzinfo=UTC)),
        Timetable(cron="0 0 1 1 *", start=datetime.min.replace(tzinfo=UTC)),
    ],
    ids=str,
)
def test_a_search_at_the_ends_of_the_years_is_short_and_ends(table: Timetable) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert table.between(last, last, 1_000) == []
    assert all(EARLIEST <= due <= LATEST for due in table.between(first, last, 1_000))
    rare = list(islice(table.after(datetime(2026, 1, 1, tzinfo=UTC)), 10_000))
    assert not rare or rare[-1] <= LATEST


def test_jitter_depends_on_the_name_alone() -> None:
    found = [jitter_of(f"1:{number}", 60).total_seconds() for number in range(200)]
    assert found == [jitter_of(f"1:{number}", 60).total_seconds() for number in range(200)]
    assert 0 <= min(found) < 5
    assert 55 < max(found) <= 60
    assert jitter_of("1:a", 0) == timedelta()


def test_a_cron_expression_in_words() -> None:
    assert words_of("0 6 * * 1-5") == "At 06:00 on Monday through Friday"
    days = [words_of(f"0 0 {day} * *").split()[4] for day in (11, 12, 13, 21, 22, 23, 30, 31)]
    assert days == ["11th", "12th", "13th", "21st", "22nd", "23rd", "30th", "31st"]
