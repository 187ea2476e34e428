"""How late schedules fire while their sweepers are killed (benchmarks/schedules.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT
from verification.proving.terminal import say

from .environment import CannotMeasure
from .suite import Suite

_COUNT = 10_000


def measure(suite: Suite) -> dict[str, Any]:
    database = "sqlite" if suite.env.database_kind == "sqlite" else suite.env.server_url
    command = [sys.executable, "-m", "benchmarks.schedules", "--json", "--database", database]
    command += ["--schedules", str(suite.options.jobs or _COUNT)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise CannotMeasure(f"benchmarks.schedules failed: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    say(
        f"{found['schedules']:,} schedules in a minute, {found['kills']} kills: "
        f"lag p99 {found['lag p99 s']} s"
    )
    wrong = [f"{found[what]} {what}" for what in ("double", "missed") if found[what]]
    return {**found, "wrong": wrong}
