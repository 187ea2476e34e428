"""A fault's verdict: recovery too recovery_findings, none, a discarded run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.verification.proving import made
from verification.proving.faults.base import Fault
from verification.proving.faults.registry import FAULTS
from verification.proving.phases import FaultResult, recovery_findings, rerun_findings
from verification.proving.recovery import Recovery
from verification.proving.state import Live


def recovery(*, jobs: float | None = 1.0, slots: float | None = 2.0, **signs: float | None) -> Recovery:
    return Recovery(3, jobs, slots, dict(signs), ["job job-1"])


def test_recovery_is_its_slowest_part():
    assert recovery(web=4.0).seconds == 4.0
    assert recovery(web=None).seconds is None
    assert recovery(jobs=None).seconds is None


def test_a_late_or_missing_recovery_is_a_finding():
    assert recovery_findings(recovery(), 2.0) == []
    assert recovery_findings(recovery(slots=2.1), 2.0) == ["took 2.1 s, the bound is 2 s"]
    (wrong,) = recovery_findings(recovery(jobs=None), 2.0)
    assert wrong.startswith("did not recover")
    assert "job job-1" in wrong


def live(*, polled: bool) -> Live:
    return Live(made.JOB, made.ATTEMPT, 1, 1, "vm:1:x", "gpu", "gpu/0", "prove-video", polled)


@pytest.mark.parametrize(
    ("runs_once", "polled", "is_wrong"),
    [
        ("all", False, True),
        ("all", True, True),
        ("polled", True, True),
        ("polled", False, False),
        ("none", True, False),
    ],
)
def test_a_discarded_run_is_a_finding_if_it_had_to_be_the_last(runs_once, polled, is_wrong):
    class Some(Fault):
        name, expected, bound_seconds = "some", "", 1.0

    Some.runs_once = runs_once
    first, second = made.attempt(state="lost", error_code="server_lost"), made.attempt(id="a2", number=2)
    attempts = {made.JOB: ("completed", [first, second])}
    trial: Any = SimpleNamespace(state=SimpleNamespace(attempts_of=lambda jobs: attempts))
    assert bool(rerun_findings(trial, Some(), [live(polled=polled)])) is is_wrong
    attempts[made.JOB] = ("completed", [first])
    assert rerun_findings(trial, Some(), [live(polled=polled)]) == []


def test_a_fault_result_is_one_line():
    result = FaultResult("flush", "order is kept", 15.0, recovery=recovery())
    assert result.verdict == "ok"
    assert result.line().startswith("flush             ok         2.0 s of 15  3 running jobs hit")
    result.wrongs.append("took 16.0 s")
    assert (result.verdict, result.as_json()["recovery_seconds"]) == ("WRONG", 2.0)
    assert "! took 16.0 s" in result.line()
    assert FaultResult("flush", "", 15.0, skipped="no Redis").line() == "flush             skipped: no Redis"


def test_faults_that_need_access_to_the_system_are_skipped_without_it():
    outside: Any = SimpleNamespace(state=None, proxies=None, sqlite_file="", valkey=None, postgresql=None)
    outside.clocks = outside.sentinel = outside.cluster = outside.seaweed = outside.pinned = None
    outside.system = SimpleNamespace(pid=lambda name: 0)
    outside.pids = dict
    playable = {name for name, fault in FAULTS.items() if not fault().skip(outside)}
    assert playable == {"restart_server", "hang_server", "late_server", "receiver_down"}
