"""A fault's verdict: too late, not at all, a run thrown away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.verification.proving import made
from verification.proving.faults.base import Fault
from verification.proving.faults.registry import FAULTS
from verification.proving.phases import Story, late, ran_again
from verification.proving.recovery import Recovery
from verification.proving.state import Live


def recovery(*, jobs: float | None = 1.0, slots: float | None = 2.0, **signs: float | None) -> Recovery:
    return Recovery(3, jobs, slots, dict(signs), ["job job-1"])


def test_recovery_is_its_slowest_part():
    assert recovery(web=4.0).seconds == 4.0
    assert recovery(web=None).seconds is None
    assert recovery(jobs=None).seconds is None


def test_what_comes_late_or_not_at_all_is_wrong():
    assert late(recovery(), 2.0) == []
    assert late(recovery(slots=2.1), 2.0) == ["took 2.1 s, the bound is 2 s"]
    (wrong,) = late(recovery(jobs=None), 2.0)
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
def test_a_run_that_was_thrown_away_is_wrong_where_it_must_not_be(runs_once, polled, is_wrong):
    class Some(Fault):
        name, expected, bound_seconds = "some", "", 1.0

    Some.runs_once = runs_once
    first, second = made.attempt(state="lost", error_code="server_lost"), made.attempt(id="a2", number=2)
    attempts = {made.JOB: ("completed", [first, second])}
    trial: Any = SimpleNamespace(state=SimpleNamespace(attempts_of=lambda jobs: attempts))
    assert bool(ran_again(trial, Some(), [live(polled=polled)])) is is_wrong
    attempts[made.JOB] = ("completed", [first])
    assert ran_again(trial, Some(), [live(polled=polled)]) == []


def test_a_story_says_on_one_line_how_it_went():
    story = Story("flush", "order is kept", 15.0, recovery=recovery())
    assert story.verdict == "ok"
    assert story.line().startswith("flush             ok         2.0 s of 15  3 running jobs hit")
    story.wrongs.append("took 16.0 s")
    assert (story.verdict, story.as_json()["recovery_seconds"]) == ("WRONG", 2.0)
    assert "! took 16.0 s" in story.line()
    assert Story("flush", "", 15.0, skipped="no Redis").line() == "flush             skipped: no Redis"


def test_faults_that_need_a_look_inside_say_so_without_one():
    outside: Any = SimpleNamespace(state=None, proxies=None, sqlite_file="", valkey=None, postgresql=None)
    outside.clocks = outside.sentinel = outside.cluster = None
    outside.system = SimpleNamespace(pid=lambda name: 0)
    outside.pids = dict
    playable = {name for name, fault in FAULTS.items() if not fault().skip(outside)}
    assert playable == {"restart_server", "hang_server", "late_server", "receiver_down"}
