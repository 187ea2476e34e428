"""Writes the results: report.json, jobs.jsonl with the end of every job, and an HTML page."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verification.proving.page import page
from verification.proving.verdict import Outcome, Records, fates, rows_as_reported

if TYPE_CHECKING:
    from verification.proving.phases import FaultResult
    from verification.proving.trial import Trial

SHOWN_WRONGS = 200
SHOWN_FATES = 300


def write_report(
    trial: Trial, results: list[FaultResult], records: Records, outcome: Outcome, *, seconds: float
) -> Path:
    """Write the report; return the path of the page."""
    rows = records.rows if records.rows is not None else rows_as_reported(records)
    unusual: list[dict[str, Any]] = []
    with (trial.report / "jobs.jsonl").open("w", encoding="utf-8") as file:
        for fate in fates(records, rows):
            file.write(json.dumps(fate) + "\n")
            if len(unusual) < SHOWN_FATES and (fate["state"] != "completed" or len(fate["attempts"]) != 1):
                unusual.append(fate)
    found = summary(trial, results, outcome, seconds=seconds)
    (trial.report / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    path = trial.report / "report.html"
    path.write_text(page(found, unusual), encoding="utf-8")
    return path


def summary(trial: Trial, results: list[FaultResult], outcome: Outcome, *, seconds: float) -> dict[str, Any]:
    """Return the content of report.json."""
    options = trial.options
    bad_faults = [result.name for result in results if result.wrongs]
    return {
        "verdict": "wrong" if outcome.wrongs or bad_faults else "nothing is wrong",
        "seed": options.seed,
        "jobs": options.jobs,
        "seconds": round(seconds),
        "database": "SQLite" if trial.sqlite_file else "PostgreSQL" if trial.state else "not seen",
        "system": "its own" if options.starts_its_own else trial.system.url,
        "conservation_checks": {"looked": trial.watch.looks, "could_not_look": trial.watch.blind},
        "faults": [result.as_json() for result in results],
        "skipped": outcome.skipped,
        "wrong_by_kind": dict(Counter(one.kind for one in outcome.wrongs)),
        "wrong": [
            {"kind": one.kind, "job": one.job_id, "text": one.text} for one in outcome.wrongs[:SHOWN_WRONGS]
        ],
        "totals": outcome.totals,
        "memory": [one.as_json() for one in outcome.slopes],
    }
