"""Results of a run, made by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.suite.pinned import summary

ABOUT = {
    "at": "2026-01-01 00:00 UTC", "commit": "abc", "python": "3.11", "cores": 2, "load_before": 0.1,
    "nice": 0, "database": "PostgreSQL", "rounds": 2, "peers": {},
}  # fmt: skip


def measured(utilisation: float, *, cpu: float = 1.0, gap: float = 1.0, wrong: tuple[str, ...] = ()) -> Any:
    one = {
        "utilisation": utilisation, "gap_p50_ms": gap, "gap_p99_ms": gap * 4, "cpu_ms_per_job": cpu,
        "database_cpu_ms_per_job": 0.5, "judge_cpu_ms_per_job": 0.1,
    }  # fmt: skip
    return {"rounds": [one, one], "median": one, "wrong": list(wrong)}


def results(**contenders: Any) -> dict[str, Any]:
    """contenders: at 20 and 100 ms alike."""
    lengths = {name: {"20 ms": one, "100 ms": one} for name, one in contenders.items()}
    targets = {
        name: {
            "served_by": "a server",
            "single": {
                "rounds": [],
                "median": {
                    "requests_per_second": rate,
                    "jobs_per_second": rate,
                    "p50_ms": 1.0,
                    "p99_ms": 2.0,
                },
            },
        }
        for name, rate in (("dispatcher", 400.0), ("Django, one row", 500.0))
    }
    span = {"p50": 5.0, "p99": 30.0, "max": 31.0, "count": 9}
    row = {
        "waiting": 1000, "slots": 8, "tenants": 10, "models": 1, "push_us": 4.0, "claim_us": 8.0,
        "release_us": 20.0, "confirm_ends_us": 2.0, "client_p50_us": 80, "client_p99_us": 90,
    }  # fmt: skip
    found: dict[str, Any] = {
        "utilisation": {"slots": 8, "contenders": lengths},
        "submit": {
            "targets": targets,
            "open": {
                "dispatcher": {
                    "rate": 200.0,
                    **targets["dispatcher"]["single"]["median"],
                    "late_p99_ms": 0.5,
                    "other": {},
                }
            },
            "ratios": {"single / Django, one row": 0.8},
            "wrong": [],
        },
        "end-to-end": {"ms": {"accepted → running": span}, "jobs": 9, "job_ms": 50.0, "wrong": []},
        "claim": {
            "rows": [{**row, "grows": ""}, {**row, "grows": "slots", "slots": 100, "release_us": 27.0}],
            "most_us": 27.0,
            "lowest_ratio": 1.0,
            "highest_ratio": 1.35,
        },
        "memory": {
            "idle_mb": 70.0, "jobs": 5000, "first_mb": 80.0, "last_mb": 81.0, "most_mb": 82.0, "flat": True,
            "samples": [(0, 70.0), (5000, 81.0)], "wrong": [],
        },
        "idle": {"mb": 600.0, "core_percent": 2.0, "processes": {"web": [100.0, 140.0, 0.01]}},
        "pinned": summary([18.0, 19.0], [0.2, 0.3]),
        "cost": {
            "jobs": 10,
            "single": {"redis commands": 4.0},
            "batch": {"redis commands": 2.0},
            "carries": {"single": {"a web process": 300}, "batch": {}},
        },
    }  # fmt: skip
    return {name: {**one, "about": ABOUT, "skipped": {}} for name, one in found.items()}
