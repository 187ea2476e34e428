"""About other tenants an explanation contains only the number of jobs ahead."""

from __future__ import annotations

from gpus.leasing.values import QueueStatus
from jobs.domain.states import JobState
from jobs.explain.decide import explain
from jobs.explain.snapshot import Servers, Snapshot


def test_a_tenant_ahead_of_its_share_learns_no_number_of_other_tenants() -> None:
    line = QueueStatus(
        in_line=True,
        position=40,
        own_ahead=1,
        tenants=7,
        lead_seconds=90.0,
        mean_seconds=5.0,
        working_slots=2,
        servers=1,
        slots={"busy": 2},
    )
    found = explain(Snapshot(JobState.QUEUED, "m", servers=Servers(on=1, slots=2), queue_status=line))
    reasons = {reason.code: reason for reason in found}
    assert dict(reasons["lower_share"].evidence) == {"gpu_seconds_ahead_of_turn": 90.0}
    assert not [reason for reason in found if "tenants" in reason.evidence or "7" in reason.message]
