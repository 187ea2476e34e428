"""A job that was passed over gets this reason while it can happen again."""

from __future__ import annotations

import pytest

from gpus.leasing.values import QueueStatus
from jobs.domain.states import JobState
from jobs.explain.decide import explain
from jobs.explain.snapshot import Servers, Snapshot


@pytest.mark.parametrize(
    ("times", "slots", "codes"),
    [
        (2, {"busy": 2}, ["near_server", "all_busy"]),
        (0, {"free": 1, "busy": 1}, ["near_server"]),
        (0, {"busy": 2}, ["all_busy"]),
    ],
)
def test_a_job_that_prefers_a_busy_server_says_so(
    times: int, slots: dict[str, int], codes: list[str]
) -> None:
    line = QueueStatus(in_line=True, slots=slots, passed_over=times, most_passed_over=8, near="gpu-1")
    found = explain(Snapshot(JobState.QUEUED, "m", servers=Servers(on=1, slots=2), queue_status=line))
    assert [reason.code for reason in found] == codes
    if codes[0] == "near_server":
        assert found[0].evidence == {"server": "gpu-1", "passed_over": times, "at_most": 8}
        assert "gpu-1" in found[0].message


@pytest.mark.parametrize(
    ("times", "left", "slots", "codes"),
    [
        (3, 12.34, {"busy": 2}, ["passed_over", "all_busy"]),
        (3, 12.34, {"free": 1, "busy": 1}, ["passed_over"]),
        (0, 30.0, {"busy": 2}, ["all_busy"]),
        (8, 12.0, {"busy": 2}, ["all_busy"]),
        (3, 0.0, {"busy": 2}, ["all_busy"]),
    ],
)
def test_being_passed_over_comes_before_busy_slots(
    times: int, left: float, slots: dict[str, int], codes: list[str]
) -> None:
    line = QueueStatus(
        in_line=True, slots=slots, passed_over=times, most_passed_over=8, patience_seconds=left
    )
    found = explain(Snapshot(JobState.QUEUED, "m", servers=Servers(on=1, slots=2), queue_status=line))
    assert [reason.code for reason in found] == codes
    if codes[0] == "passed_over":
        assert found[0].evidence == {"passed_over": 3, "at_most": 8, "patience_seconds": 12.3}
