"""The results of one folder as JSON; a later run replaces only the benchmarks that it measured."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT

from .goals import Goal, goals, wrongs
from .options import BENCHMARKS, Options
from .page import page
from .peers import PEERS, pinned

FILE, PAGE = "bench.json", "bench.html"


@dataclass(slots=True)
class Report:
    folder: Path
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

    @classmethod
    def open(cls, options: Options) -> Report:
        """Return the report with the results already in the folder."""
        options.report.mkdir(parents=True, exist_ok=True)
        results: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(FileNotFoundError):
            results = read(options.report)["results"]
        return cls(options.report, results, options)

    @property
    def page_path(self) -> Path:
        return self.folder / PAGE

    def add(self, benchmark: str, found: Mapping[str, Any], skipped: Mapping[str, str], load: float) -> None:
        """Add the results of a benchmark. skipped: contenders left out, and why. load: the machine's load
        average before."""
        known = {**about(self.options), "load_before": round(load, 1)}
        self.results[benchmark] = {**found, "about": known, "skipped": dict(skipped)}

    def as_json(self) -> dict[str, Any]:
        ordered = {name: self.results[name] for name in BENCHMARKS if name in self.results}
        return {
            "goals": [goal.as_json() for goal in goals(ordered)],
            "wrong": list(wrongs(ordered)),
            "results": ordered,
        }

    def write(self) -> None:
        found = self.as_json()
        _write(self.folder / FILE, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        _write(self.page_path, page(found))

    def missed(self) -> bool:
        """Return True if a goal of this run was missed, or a result was incorrect."""
        ran = {name: one for name, one in self.results.items() if name in self.options.benchmarks}
        return bool(wrongs(ran)) or any(goal.met is False for goal in goals(ran))

    def text(self) -> str:
        """Return the goals of this run as a Markdown table, for the terminal and for pasting."""
        found = [goal for goal in goals(self.results) if goal.benchmark in self.options.benchmarks]
        return goal_table(found) if found else "There is no goal for this."


def read(folder: Path) -> dict[str, Any]:
    """Read a report. Raises FileNotFoundError; ValueError if it is not a report."""
    return dict(json.loads((folder / FILE).read_text()))


def goal_table(found: list[Goal]) -> str:
    marks = {True: "yes", False: "**no**", None: "–"}
    rows = [f"| {one.benchmark} | {one.goal} | {one.measured} | {marks[one.met]} |" for one in found]
    return "\n".join(["| Benchmark | Goal | Measured | Met |", "| --- | --- | --- | --- |", *rows])


def about(options: Options) -> dict[str, Any]:
    """Return the conditions of the measurement, without the machine's name."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "nice": os.nice(0),
        "database": "PostgreSQL" if options.database != "sqlite" else "SQLite",
        "rounds": options.rounds,
        "peers": {name: packages for name, packages in pinned().items() if name in PEERS},
    }


def _git(*arguments: str) -> str:
    """Empty without a repository."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()
    return ""


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text)
    draft.replace(path)
