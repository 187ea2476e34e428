"""`docs/explanation/one_job.md` names every product file that a job enters, from its request to its signed
callback."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from tests.scenarios.traced_jobs import PROCESSES, Stops, trace_jobs

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(
        bool(os.environ.get("DISPATCHER_TEST_DATABASE_URL")), reason="the page names the files of SQLite"
    ),
]

PAGE = ROOT / "docs/explanation/one_job.md"
TOOLS = "tools"
"""The page's last section: files of `foundation/`, whichever process enters them."""
MAX_FILES = 67


def files_by_section(page: str) -> dict[str, list[str]]:
    """The Python files that each section's table names, by the process in its heading."""
    sections = dict[str, list[str]]()
    for section in page.split("\n## ")[1:]:
        heading = section.splitlines()[0]
        name = next((name for name in (*PROCESSES, TOOLS) if f"`{name}`" in heading), heading)
        sections[name] = re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)
    return sections


def differences(named: dict[str, list[str]], stops: dict[str, Stops]) -> list[str]:
    """One line for each file that the page lacks, or has without or beside its place."""
    found = list[str]()
    on_page = Counter(file for files in named.values() for file in files)
    found += [f"named {count} times: {file}" for file, count in on_page.items() if count > 1]
    passed = set[str]()
    for process in PROCESSES:
        always = set(stops[process].always)
        found += [
            f"{process}: not on the page: {file}" for file in stops[process].always if not on_page[file]
        ]
        at_times = stops[process].at_times
        found += [f"{process}: no job enters {file}" for file in named[process] if file not in at_times]
        found += [f"{process}: an earlier process enters {file}" for file in named[process] if file in passed]
        passed |= always
    entered = set.union(*(one.at_times for one in stops.values()))
    found += [f"{TOOLS}: no job enters {file}" for file in named[TOOLS] if file not in entered]
    return found


def test_the_page_names_the_files_that_a_job_enters(tmp_path: Path) -> None:
    named = files_by_section(PAGE.read_text())
    stops = trace_jobs(tmp_path)
    assert differences(named, stops) == []
    assert sum(len(files) for files in named.values()) <= MAX_FILES


def test_each_difference_between_page_and_trace_is_found() -> None:
    page = (
        "# One job\n\n## `web`\n\n| `a.py` | why |\n| `b.py` | why |\n\n## `gpu_worker`\n\n| `a.py` | why |\n"
    )
    page += "\n## `callbacks`\n\n| `b.py` | why |\n\n## `tools`\n\n| `t.py` | why |\n| `u.py` | why |\n"
    named = files_by_section(page)
    assert named == {
        "web": ["a.py", "b.py"],
        "gpu_worker": ["a.py"],
        "callbacks": ["b.py"],
        TOOLS: ["t.py", "u.py"],
    }
    stops = {
        "web": Stops(["a.py", "t.py"], {"a.py", "t.py"}),
        "gpu_worker": Stops(["a.py", "c.py"], {"a.py", "c.py"}),
        "callbacks": Stops([], {"b.py"}),
    }
    assert differences(named, stops) == [
        "named 2 times: a.py",
        "named 2 times: b.py",
        "web: no job enters b.py",
        "gpu_worker: not on the page: c.py",
        "gpu_worker: an earlier process enters a.py",
        "tools: no job enters u.py",
    ]
