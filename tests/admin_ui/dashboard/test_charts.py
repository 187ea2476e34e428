"""Charts: their SVG elements and their text labels."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from xml.etree import ElementTree

from admin_ui.dashboard import charts
from admin_ui.dashboard.labels import age, rate
from jobs.reports.history import WINDOWS, ModelHistory
from jobs.reports.rollups import Sums, counted, sum_of_buckets

BEGIN = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def line(**buckets: Sums) -> ModelHistory:
    """A history with the given buckets, named by their index: ``at3=…``."""
    all_buckets, total = [Sums() for _ in range(60)], Sums()
    for name, sums in buckets.items():
        all_buckets[int(name.removeprefix("at"))] = sums
        total.add(sums)
    return ModelHistory(WINDOWS["1h"], all_buckets, total)


def elements(svg: str, tag: str) -> list[dict[str, str]]:
    return [dict(one.attrib) for one in ElementTree.fromstring(svg).iter(tag)]


def test_bars_have_the_height_of_their_counts_and_are_stacked() -> None:
    drawn = charts.ended_chart(line(at0=Sums(completed=2), at59=Sums(completed=6, failed=2)), BEGIN)
    bars = [one for one in elements(drawn, "rect") if one["class"] != "hint"]
    assert [(one["class"], one["x"], one["y"], one["height"]) for one in bars] == [
        ("bar-completed", "0.00", "75.00", "25.00"),
        ("bar-completed", "590.00", "25.00", "75.00"),
        ("bar-failed", "590.00", "0.00", "25.00"),
    ]
    assert bars[2]["fill"] == "url(#hatched)"  # failed differs by more than its colour
    assert 'id="hatched"' in charts.PATTERNS


def test_a_chart_has_a_text_label_and_tooltips() -> None:
    drawn = charts.ended_chart(line(at0=Sums(completed=2), at7=Sums(completed=6, failed=2)), BEGIN)
    assert 'aria-label="8 completed, 2 failed; at most 8 at a time"' in drawn
    titles = re.findall("<title>(.*?)</title>", drawn)
    assert titles == ["12:00: 2 completed", "12:07: 6 completed, 2 failed"]
    assert 'aria-label="no finished jobs; at most 0 at a time"' in charts.ended_chart(line(), BEGIN)


def test_curves_have_gaps_at_empty_buckets() -> None:
    waits = sum_of_buckets(counted(1.9), counted(19.0))
    drawn = charts.time_chart(
        line(at0=Sums(waits=waits, completed=2), at1=Sums(waits=waits, completed=2), at9=Sums(waits=waits)),
        BEGIN,
        "wait",
    )
    paths = {one["class"]: one["d"] for one in elements(drawn, "path")}
    assert paths["curve-p95"].count("M") == 2
    assert paths["curve-p50"].count("L") == 3
    assert 'aria-label="wait time: p50 2.00 s, p95 19.5 s"' in drawn
    assert charts.highest(line(at0=Sums(waits=waits)), "wait") > 15
    assert charts.highest(line(), "wait") == 0.0


def test_ages_and_rates_are_short() -> None:
    ages = [None, -3, 0, 59.9, 60, 3599, 3600, 12_000, 86_400, 100_000]
    assert [age(seconds) for seconds in ages] == [
        "", "0 s", "0 s", "59 s", "1 m", "59 m", "1 h", "3 h 20 m", "1 d", "1 d 3 h",
    ]  # fmt: skip
    assert [rate(value) for value in (0, 0.25, 1.0, 12.34, 1234.5)] == ["0", "0.25", "1", "12.3", "1,234"]
