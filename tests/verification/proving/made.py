"""Records made by hand: a trial of one job without findings, changed by each test."""

from __future__ import annotations

from typing import Any

from verification.proving.records import AttemptRow, JobRow, Message, NodeLog, Order, Refusal, Run

JOB, ATTEMPT, SLOT = "job-1", "attempt-1", "gpu/0"


def order(**fields: Any) -> Order:
    usual: dict[str, Any] = {
        "key": "key-1",
        "tenant": "ada",
        "model": "prove-image",
        "priority": 5,
        "seconds": 0.1,
        "callback": False,
        "deadline_seconds": None,
        "asked_at": 1000.0,
        "job_ids": [JOB],
        "accepted_at": 1000.1,
        "reported": "completed",
    }
    return Order(**(usual | fields))


def attempt(**fields: Any) -> AttemptRow:
    usual: dict[str, Any] = {
        "id": ATTEMPT,
        "number": 1,
        "round": 1,
        "state": "completed",
        "epoch": 1,
        "server": "gpu",
        "slot": 0,
        "has_remote_id": False,
        "error_code": "",
        "started_at": 1000.2,
    }
    return AttemptRow(**(usual | fields))


def row(**fields: Any) -> JobRow:
    usual: dict[str, Any] = {
        "id": JOB,
        "tenant": "ada",
        "model": "prove-image",
        "priority": 5,
        "place_us": 1_000_000_000,
        "state": "completed",
        "error_code": "",
        "round": 1,
        "result_attempt": ATTEMPT,
        "attempts": (attempt(),),
    }
    return JobRow(**(usual | fields))


def rows(*found: JobRow) -> dict[str, JobRow]:
    return {one.id: one for one in found or (row(),)}


def run(**fields: Any) -> Run:
    usual: dict[str, Any] = {
        "server": "gpu",
        "job_id": JOB,
        "attempt_id": ATTEMPT,
        "slot": SLOT,
        "fence": 1,
        "started": 1000.2,
        "ended": 1000.3,
        "outcome": "success",
    }
    return Run(**(usual | fields))


def log(
    *runs: Run,
    refusals: tuple[Refusal, ...] = (),
    peak: int = 1,
    overlapping: tuple[tuple[Run, Run], ...] = (),
) -> NodeLog:
    return NodeLog("gpu", list(runs or (run(),)), list(refusals), peak, list(overlapping))


def refusal(**fields: Any) -> Refusal:
    usual: dict[str, Any] = {
        "server": "gpu",
        "job_id": JOB,
        "attempt_id": ATTEMPT,
        "slot": SLOT,
        "why": "full",
        "running": 2,
        "at": 1000.0,
    }
    return Refusal(**(usual | fields))


def message(**fields: Any) -> Message:
    usual: dict[str, Any] = {
        "webhook_id": "msg-1",
        "job_id": JOB,
        "status": "completed",
        "attempt_id": ATTEMPT,
        "signed": True,
        "at": 1000.5,
    }
    return Message(**(usual | fields))
