"""Which tests a worker gets next; no processes here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

Kind = Literal["scenario", "long", "other"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Tests that one worker runs one after another: they share a system, or what their file has made.

    tests: indices into the collected items. folder: tests of one folder share fixtures, too.
    """

    kind: Kind
    folder: str
    tests: tuple[int, ...]


MOST_SCENARIOS = 30
_BROWSER = "web_browser"
_SHARED = ("shared_system", "player", _BROWSER)
"""Fixtures of a whole run that take seconds to start: their tests are one unit."""


def units(items: Sequence[pytest.Item]) -> list[Unit]:
    """Return the units of all items. Each long test is one, unless it shares a fixture with others. Tests in
    a browser are one unit, and begin with the long ones."""
    together: dict[tuple[Kind, str], list[int]] = {}
    for number, item in enumerate(items):
        together.setdefault(_place(item), []).append(number)
    return [
        Unit(kind, str(items[tests[0]].path.parent), tuple(tests))
        for (kind, _), all_tests in together.items()
        for tests in (_in_two(items, all_tests) if kind == "scenario" else [all_tests])
    ]


def _in_two(items: Sequence[pytest.Item], tests: list[int]) -> list[list[int]]:
    """A unit of so many scenarios that another start of what they share is shorter than they are: it is cut
    before the file in its middle."""
    middle = items[tests[len(tests) // 2]].path
    cut = next(place for place, test in enumerate(tests) if items[test].path == middle)
    return [tests[:cut], tests[cut:]] if cut and len(tests) > MOST_SCENARIOS else [tests]


def _place(item: pytest.Item) -> tuple[Kind, str]:
    shared = next((name for name in _SHARED if name in getattr(item, "fixturenames", ())), "")
    if item.get_closest_marker("long") or shared == _BROWSER:
        return "long", shared or item.nodeid
    if item.get_closest_marker("scenario"):
        return "scenario", shared or str(item.path)
    return "other", str(item.path)


class Plan:
    """Hands units out, to each worker when it has come to the end of its own.

    Scenarios mostly wait: some begin at once, the largest first, and no more than `scenarios_at_once` run
    beside the others, which keep the cores busy. A worker stays in a folder as long as that has units.
    """

    def __init__(self, units: Sequence[Unit], *, scenarios_at_once: int) -> None:
        self._scenarios_at_once = scenarios_at_once
        largest_first = sorted(units, key=lambda unit: -len(unit.tests))
        self._scenarios = deque(unit for unit in largest_first if unit.kind == "scenario")
        self._long = deque(unit for unit in largest_first if unit.kind == "long")
        self._folders: dict[str, deque[Unit]] = {}
        for unit in units:
            if unit.kind == "other":
                self._folders.setdefault(unit.folder, deque()).append(unit)
        self._last: dict[str, Unit] = {}

    def take(self, worker: str) -> Unit | None:
        """Return the next unit of this worker, or None if all have been handed out."""
        before = self._last.pop(worker, None)
        unit = self._next(before.folder if before else "")
        if unit is not None:
            self._last[worker] = unit
        return unit

    def give_back(self, worker: str, tests: tuple[int, ...]) -> None:
        """A worker has died: another one runs these tests."""
        before = self._last.pop(worker, None)
        if tests and before is not None:
            self._long.appendleft(Unit("long", before.folder, tests))

    def _next(self, folder: str) -> Unit | None:
        playing = sum(unit.kind == "scenario" for unit in self._last.values())
        if self._scenarios and playing < self._scenarios_at_once:
            return self._scenarios.popleft()
        if self._long:
            return self._long.popleft()
        if self._folders:
            return self._of_a_folder(folder)
        return self._scenarios.popleft() if self._scenarios else None

    def _of_a_folder(self, folder: str) -> Unit:
        """Of this one; else of the one with most tests for each worker that is there."""
        if folder not in self._folders:
            there = Counter(unit.folder for unit in self._last.values())
            folder = max(self._folders, key=lambda one: self._tests_of(one) / (1 + there[one]))
        unit = self._folders[folder].popleft()
        if not self._folders[folder]:
            del self._folders[folder]
        return unit

    def _tests_of(self, folder: str) -> int:
        return sum(len(unit.tests) for unit in self._folders[folder])
