from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.forked.plan import Plan, Unit, units


class Item:
    """What the plan asks of a test."""

    def __init__(self, nodeid: str, *marks: str, fixture: str = "") -> None:
        self.nodeid, self.marks = nodeid, marks
        self.path = Path(nodeid.partition("::")[0])
        self.fixturenames = [fixture]

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def others(folder: str, *sizes: int) -> list[Unit]:
    return [Unit("other", folder, tuple(range(size))) for size in sizes]


def test_tests_of_a_file_of_one_system_of_one_player_and_of_one_browser_stay_together() -> None:
    items: Any = [
        Item("a/one.py::1"),
        Item("a/s.py::1", "scenario", fixture="shared_system"),
        Item("a/s.py::2", "scenario"),
        Item("a/long.py::1", "long"),
        Item("a/long.py::2", "long"),
        Item("b/t.py::1", "scenario", fixture="shared_system"),
        Item("a/one.py::2"),
        Item("c/long.py::1", "long", fixture="player"),
        Item("d/long.py::1", "long", fixture="player"),
        Item("a/pages.py::1", fixture="web_browser"),
        Item("e/pages.py::1", "long", fixture="web_browser"),
    ]
    assert units(items) == [
        Unit("other", "a", (0, 6)),
        Unit("scenario", "a", (1, 5)),
        Unit("scenario", "a", (2,)),
        Unit("long", "a", (3,)),
        Unit("long", "a", (4,)),
        Unit("long", "c", (7, 8)),
        Unit("long", "a", (9, 10)),
    ]


def test_many_scenarios_of_one_system_are_cut_between_two_files() -> None:
    files = [("s/one.py", 10), ("s/two.py", 12), ("s/three.py", 9)]
    items: Any = [
        Item(f"{file}::{number}", "scenario", fixture="shared_system")
        for file, count in files
        for number in range(count)
    ]
    assert units(items) == [
        Unit("scenario", "s", tuple(range(10))),
        Unit("scenario", "s", tuple(range(10, 31))),
    ]
    assert units(items[:-1]) == [Unit("scenario", "s", tuple(range(30)))]


def test_some_scenarios_begin_at_once_the_largest_first_and_long_tests_beside_them() -> None:
    small, large = Unit("scenario", "s", (1,)), Unit("scenario", "s", (2, 3))
    long = Unit("long", "l", (4,))
    (other,) = others("o", 1)
    plan = Plan([other, long, small, large], scenarios_at_once=1)
    assert [plan.take(name) for name in ("gw0", "gw1", "gw2")] == [large, long, other]
    assert plan.take("gw0") == small, "its last one was a scenario too"
    assert plan.take("gw1") is None


def test_scenarios_that_are_left_at_the_end_do_not_wait_for_each_other() -> None:
    scenarios = [Unit("scenario", "s", (number,)) for number in range(3)]
    plan = Plan(scenarios, scenarios_at_once=1)
    assert [plan.take(name) for name in ("gw0", "gw1", "gw2", "gw0")] == [*scenarios, None]


def test_a_worker_stays_in_its_folder_and_then_goes_where_most_is_left() -> None:
    few, many = others("few", 1, 2), others("many", 5, 6, 7)
    plan = Plan([*few, *many], scenarios_at_once=1)
    assert plan.take("gw0") == many[0]
    assert plan.take("gw1") == many[1], "for two workers it still has more for each"
    assert plan.take("gw0") == many[2]
    assert [plan.take("gw1"), plan.take("gw1"), plan.take("gw1")] == [*few, None]


def test_the_tests_of_a_dead_worker_go_to_the_next_one() -> None:
    first, second = others("o", 4, 1)
    plan = Plan([first, second], scenarios_at_once=1)
    assert plan.take("gw0") == first
    plan.give_back("gw0", (2, 3))
    taken = [plan.take("gw1"), plan.take("gw1"), plan.take("gw1")]
    assert [unit and unit.tests for unit in taken] == [(2, 3), second.tests, None]
