"""Every IANA time zone over 24 months, with sweeps at random times: the product against a slow oracle.

cronsim is the oracle of fixed times, a walk through all quarters of an hour that of others; due times,
catch-up and overlaps are computed here once more, one by one.
`python3 manage.py test -m by_hand tests/workflows/schedules/domain/test_zones.py` takes all
zones.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim

from workflows.schedules.domain.policy import CatchUp, Lateness, Overlap, Step, judge, step_of
from workflows.schedules.domain.timetable import Timetable

BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
END = datetime(2027, 1, 1, tzinfo=UTC)
EVERY_FIFTH_HOUR = "0 */5 * * *"
CRONS = ("30 2 * * *", "15 0,1,2,3 * * *", EVERY_FIFTH_HOUR, "45 23 * * 0")
GRACE, WINDOW, MOST_WAITING = 30.0, 6 * 3600.0, 3
SOME = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")


def due_times(cron: str, zone: str) -> list[datetime]:
    """Each moment once, in order: fixed times by cronsim, others by what the zone's clocks show."""
    if cron == EVERY_FIFTH_HOUR:
        quarters = (BEGIN + n * timedelta(minutes=15) for n in range(1, (END - BEGIN).days * 96 + 1))
        clocks = ((at, at.astimezone(ZoneInfo(zone))) for at in quarters)
        return [at for at, clock in clocks if clock.minute == 0 and clock.hour % 5 == 0]
    found = []
    for due in CronSim(cron, BEGIN.astimezone(ZoneInfo(zone))):
        if due.astimezone(UTC) > END:
            return sorted(set(found))
        found.append(due.astimezone(UTC))
    return []


def sweep_times(chance: random.Random) -> list[datetime]:
    """Mostly often, with pauses of up to two days."""
    times, at = [], BEGIN
    while at < END:
        gap = chance.choice([20.0, 600.0, 7200.0, 7200.0, 20_000.0, 172_800.0])
        at += timedelta(seconds=gap)
        times.append(at)
    return times[:-1]


def fates(dues: list[datetime], sweeps: list[datetime], catch_up: CatchUp) -> dict[datetime, bool]:
    """The oracle of catch-up: whether each due time is started, looked at alone."""
    found = {}
    for place, due in enumerate(dues):
        at = bisect_left(sweeps, due)
        if at == len(sweeps):
            continue
        late = (sweeps[at] - due).total_seconds()
        is_newest = place + 1 == len(dues) or dues[place + 1] > sweeps[at]
        caught_up = catch_up is CatchUp.ALL or (catch_up is CatchUp.LAST and is_newest)
        found[due] = late <= GRACE or (caught_up and late <= WINDOW)
    return found


def overlapped(
    starts: list[tuple[datetime, datetime]], overlap: Overlap, seconds: float, sweeps: list[datetime]
) -> dict[datetime, str]:
    """The oracle of overlaps: what becomes of (sweep, due), one by one. Runs take so many seconds; one that
    waits starts at the first sweep after the end of what runs."""
    found: dict[datetime, str] = {}
    waiting: list[datetime] = []
    running: list[datetime] = []  # ends
    room = {Overlap.QUEUE_ONE: 1, Overlap.QUEUE_ALL: MOST_WAITING, Overlap.CANCEL_PREVIOUS: 99}
    by_sweep: dict[datetime, list[datetime]] = {}
    for sweep, due in starts:
        by_sweep.setdefault(sweep, []).append(due)
    for sweep in sweeps:
        running = [end for end in running if end > sweep]
        for due in by_sweep.get(sweep, ()):
            if overlap is Overlap.ALLOW or not (running or waiting):
                found[due] = "started"
                running.append(sweep + timedelta(seconds=seconds))
            elif overlap is Overlap.SKIP or len(waiting) >= room[overlap]:
                found[due] = "skipped"
            elif overlap is Overlap.CANCEL_PREVIOUS:
                found.update(dict.fromkeys(waiting, "skipped"))
                waiting = [due]
            else:
                waiting.append(due)
        if waiting and not running:
            found[waiting.pop(0)] = "started"
            running.append(sweep + timedelta(seconds=seconds))
    return found | dict.fromkeys(waiting, "waiting")


def played(
    table: Timetable, sweeps: list[datetime], catch_up: CatchUp, overlap: Overlap, seconds: float
) -> tuple[dict[datetime, str], int]:
    """The product's steps: what became of each due time that was to be started, and how many were missed."""
    rules = Lateness(catch_up, WINDOW, GRACE)
    handled, missed = BEGIN, 0
    found: dict[datetime, str] = {}
    running: list[datetime] = []
    waiting: list[datetime] = []
    for now in sweeps:
        running = [end for end in running if end > now]
        dues = table.between(handled + timedelta(microseconds=1), now, 10_000)
        for judged in judge(dues, now, rules, are_all=True):
            if judged.reason is not None:
                missed += judged.count
                continue
            due = judged.first
            step = step_of(overlap, running=len(running), waiting=len(waiting), most_waiting=MOST_WAITING)
            if step is Step.START:
                found[due] = "started"
                running.append(now + timedelta(seconds=seconds))
            elif step in (Step.SKIP, Step.FULL):
                found[due] = "skipped"
            else:
                if step is Step.REPLACE:
                    found.update(dict.fromkeys(waiting, "skipped"))
                    waiting = []
                waiting.append(due)
        handled = dues[-1] if dues else handled
        if waiting and not running:
            found[waiting.pop(0)] = "started"
            running.append(now + timedelta(seconds=seconds))
    return found | dict.fromkeys(waiting, "waiting"), missed


def check(zone: str) -> None:
    chance = random.Random(zone)
    for cron in CRONS:
        dues, table = due_times(cron, zone), Timetable(cron=cron, zone=ZoneInfo(zone))
        assert table.between(BEGIN + timedelta(microseconds=1), END, 100_000) == dues, (zone, cron)
        assert all(first < second for first, second in pairwise(dues))
        for place in (chance.randrange(len(dues)), chance.randrange(len(dues)), len(dues) // 3):
            after = dues[place] + timedelta(seconds=chance.choice([0, 1, 1800]))
            assert table.next_after(after) == next(
                (due for due in dues if due > after), table.next_after(END)
            )
        sweeps = sweep_times(chance)
        catch_up, overlap = chance.choice(list(CatchUp)), chance.choice(list(Overlap))
        seconds = chance.choice([60.0, 9_000.0, 100_000.0])
        expected = fates(dues, sweeps, catch_up)
        starts = [
            (sweeps[bisect_left(sweeps, due)], due) for due, is_started in expected.items() if is_started
        ]
        found, missed = played(table, sweeps, catch_up, overlap, seconds)
        assert found == overlapped(starts, overlap, seconds, sweeps), (zone, cron, catch_up, overlap)
        assert missed == len(expected) - len(starts), (zone, cron, catch_up)


@pytest.mark.parametrize("zone", SOME)
def test_two_years_of_a_zone(zone: str) -> None:
    check(zone)


def offsets(name: str) -> tuple[tuple[datetime, timedelta | None], ...]:
    """When the zone's offset from UTC changes, from the day before the two years on, and to what."""
    zone, found = ZoneInfo(name), list[tuple[datetime, timedelta | None]]()
    at = BEGIN - timedelta(days=1)
    while at < END + timedelta(days=30):  # `next_after` looks beyond
        if not found or at.astimezone(zone).utcoffset() != found[-1][1]:
            low, high = at - timedelta(days=1), at
            while found and high - low > timedelta(minutes=1):
                middle = low + (high - low) / 2
                is_before = middle.astimezone(zone).utcoffset() == found[-1][1]
                low, high = (middle, high) if is_before else (low, middle)
            found.append((high, at.astimezone(zone).utcoffset()))
        at += timedelta(days=1)
    return tuple(found)


@pytest.mark.by_hand
@pytest.mark.timeout(7200)
def test_two_years_of_every_zone() -> None:
    """One of those with the same offsets stands for them: their due times are the same."""
    zones = sorted(available_timezones() - {"localtime"})
    for zone in {offsets(zone): zone for zone in zones}.values():
        check(zone)
