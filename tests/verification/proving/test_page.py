"""The page has the content of report.json, whatever that is."""

from __future__ import annotations

from typing import Any

from verification.proving.page import page

FOUND: dict[str, Any] = {
    "verdict": "wrong",
    "seed": 1,
    "jobs": 60,
    "seconds": 30,
    "database": "SQLite",
    "system": "its own",
    "conservation_checks": {"looked": 9, "could_not_look": 1},
    "skipped": ["the database"],
    "faults": [
        {
            "fault": "kill_worker",
            "expected": "adopted <at once>",
            "verdict": "WRONG",
            "recovery_seconds": 31.0,
            "bound_seconds": 25.0,
            "measured_from": "when it was played",
            "wrong": ["took 31.0 s"],
            "notes": [],
            "skipped": "",
            "affected_jobs": 3,
            "jobs_seconds": 31.0,
            "slots_seconds": 2.0,
            "signs": {"web": 1.0},
            "load_average_before": 1.0,
            "load_average": 2.0,
        },
        {
            "fault": "flush",
            "expected": "",
            "verdict": "skipped",
            "recovery_seconds": None,
            "bound_seconds": 15.0,
            "measured_from": "",
            "wrong": [],
            "notes": [],
            "skipped": "no Redis",
            "load_average_before": 0.0,
        },
    ],
    "wrong_by_kind": {"lost": 1},
    "wrong": [{"kind": "lost", "job": "job-1", "text": "<script>alert(1)</script>"}],
    "totals": {"jobs_asked": 60, "jobs_by_state": {"completed": 59}},
    "memory": [
        {
            "process": "web",
            "pid": 1,
            "seconds": 9,
            "first_mb": 1,
            "last_mb": 2,
            "mb_per_hour": 3,
            "flat": False,
        }
    ],
}
FATE = {
    "job": "job-1", "model": "m", "state": "lost", "code": "", "attempts": ["gpu/0 lost"], "gpu_runs": 1,
    "callbacks": 0, "cancel": "",
}  # fmt: skip


def test_it_shows_verdict_faults_findings_and_fates():
    text = page(FOUND, [FATE])
    for part in ("Wrong", "kill_worker", "31.0 s", "no Redis", "job-1", "gpu/0 lost", "59", "the database"):
        assert part in text


def test_foreign_text_is_never_markup():
    text = page(FOUND, [FATE])
    assert "<script>" not in text
    assert "<at once>" not in text


def test_a_good_trial_lists_no_findings():
    text = page(FOUND | {"verdict": "nothing is wrong", "wrong": [], "faults": [], "memory": []}, [])
    assert "Nothing is wrong" in text
    assert "What is wrong" not in text
