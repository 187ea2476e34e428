"""Logs and ledger are read as they were written, even if a process was killed in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verification.proving.ledger import Ledger, Tail, read_lines
from verification.proving.mix import planned_job
from verification.proving.records import read_node_log, read_orders


def began(number: int, slot: str = "gpu/0", at: float = 1.0) -> dict[str, Any]:
    return {
        "what": "began", "source": "dispatcher", "run": f"run-{number}", "job": f"job-{number}",
        "attempt": f"attempt-{number}", "slot": slot, "fence": number, "started": at,
    }  # fmt: skip


def ended(number: int, outcome: str = "success") -> dict[str, Any]:
    return {"what": "ended", "run": f"run-{number}", "ended": 2.0, "outcome": outcome}


def test_a_run_is_read_with_its_end():
    log = read_node_log("gpu", [{"what": "boot", "at": 0.0}, began(1), ended(1), began(2, "gpu/1")])
    assert [(run.job_id, run.slot, run.outcome) for run in log.runs] == [
        ("job-1", "gpu/0", "success"),
        ("job-2", "gpu/1", ""),
    ]
    assert (log.peak, log.overlapping) == (1, [])


def test_concurrent_runs_are_found_by_the_order_of_lines_alone():
    log = read_node_log("gpu", [began(1, at=5.0), began(2, at=5.0), ended(1), ended(2)])
    assert log.peak == 2
    assert [(one.job_id, other.job_id) for one, other in log.overlapping] == [("job-1", "job-2")]


def test_a_boot_ends_what_ran_before_it():
    log = read_node_log("gpu", [began(1), {"what": "boot", "at": 9.0}, began(2), ended(2)])
    assert [(run.outcome, run.ended) for run in log.runs] == [("crashed", 9.0), ("success", 2.0)]
    assert (log.peak, log.overlapping) == (1, [])


def test_runs_of_direct_callers_are_ignored():
    direct = {**began(1), "source": "direct"}
    refused = {
        "what": "refused", "source": "direct", "job": "", "attempt": "", "slot": "", "why": "full",
        "running": 1, "at": 1.0,
    }  # fmt: skip
    log = read_node_log("gpu", [direct, refused, ended(1)])
    assert (log.runs, log.refusals, log.peak) == ([], [], 0)


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path):
    file = tmp_path / "node.jsonl"
    file.write_text('{"what": "boot"}\n{"what": "beg')
    assert [line["what"] for line in read_lines(file)] == ["boot"]
    tail = Tail(file)
    assert len(tail.read()) == 1
    with file.open("a") as more:
        more.write('an"}\n{"what": "ended"}\n')
    assert [line["what"] for line in tail.read()] == ["began", "ended"]
    assert tail.read() == []


def test_the_ledger_is_read_into_orders(tmp_path: Path):
    file = tmp_path / "ledger.jsonl"
    ledger = Ledger(file)
    jobs = [planned_job(n, seed=1, prefix="prove", tenants=["ada"]) for n in range(3)]
    ledger.write(*({"what": "asked", "at": 10.0, **job.as_json()} for job in jobs))
    ledger.write({"what": "answer", "status": 503, "retry_after": "5", "asked_at": 10.0, "took": 0.1})
    ledger.write({"what": "accepted", "key": jobs[0].key, "job": "a", "at": 11.0, "took": 1.0})
    ledger.write({"what": "doubled", "key": jobs[0].key, "job": "b"})
    ledger.write({"what": "unanswered", "key": jobs[1].key, "error": "no answer", "at": 12.0})
    ledger.write({"what": "cancel", "job": "a", "outcome": "requested", "at": 12.0})
    ledger.write({"what": "reported", "job": "a", "status": "completed", "code": "", "attempt": "x"})
    ledger.write({"what": "reported", "job": "a", "status": "completed", "code": ""})
    orders, answers = read_orders(file)
    first, second, third = (orders[job.key] for job in jobs)
    assert (first.job_ids, first.took, first.cancel) == (["a", "b"], 1.0, "requested")
    assert (first.reported, first.reported_attempt) == ("completed", "x")
    assert second.problem == "unanswered: no answer"
    assert (third.job_id, third.reported) == ("", "")
    assert [(one.status, one.retry_after) for one in answers] == [(503, "5")]
    assert json.loads(file.read_text().splitlines()[0])["key"] == jobs[0].key


def test_a_job_follows_from_seed_and_number_alone():
    def jobs(seed: int) -> list[Any]:
        return [planned_job(n, seed=seed, prefix="p", tenants=["ada", "bob"]) for n in range(400)]

    assert jobs(1) == jobs(1)
    assert jobs(1) != jobs(2)
    short = [job for job in jobs(1) if job.seconds <= 0.5]
    assert 380 <= len(short) < 400
    assert min(job.seconds for job in short) >= 0.05
    assert {job.model for job in jobs(1)} == {"p-image", "p-once", "p-video", "p-speech"}
    assert all(
        any(getattr(job, field) for job in jobs(1)) for field in ("callback", "cancel_after", "doubled")
    )
