"""Explanations of a tenant's limits and of unhealthy servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.values import QueueStatus
from gpus.protocol import DesiredState
from gpus.registry import queries
from gpus.registry.queries import rows_changed
from jobs.domain.quota import Quota
from jobs.domain.states import JobState
from jobs.explain.decide import explain
from jobs.explain.interval import starts_in
from jobs.explain.snapshot import Servers, Snapshot
from jobs.operations.explain_job import estimate_job
from tests.jobs.explain.injected import capped, over_quota
from tests.jobs.explain.scene import Scene
from tests.support.factories import make_model, make_server, make_tenant
from tests.support.fakes import make_ports

pytestmark = pytest.mark.django_db


@pytest.fixture
def scene(valkey: EmbeddedValkey) -> Iterator[Scene]:
    yield Scene(redis.Redis.from_url(valkey.url), 4)
    rows_changed.send(None)


def test_the_reason_for_max_running_names_the_count_and_the_limit(scene: Scene) -> None:
    found = scene.explain(capped(scene))
    assert [reason.code for reason in found.reasons] == ["tenant_cap"]
    assert found.reasons[0].evidence == {"running": 1, "limit": 1}
    assert found.starts is None, "the end of a running job is unknown"


def test_the_reason_for_a_quota_names_the_use_and_midnight(scene: Scene) -> None:
    scene.clock.move(3600.0)
    found = scene.explain(over_quota(scene))
    evidence = found.reasons[0].evidence
    assert found.reasons[0].code == "quota"
    assert evidence["limit_gpu_seconds"] == scene.tenant.daily_gpu_seconds
    assert evidence["used_gpu_seconds"] >= evidence["limit_gpu_seconds"] - 0.1
    assert evidence["resets_in_seconds"] == pytest.approx(23 * 3600, abs=2)
    assert found.starts is not None
    assert found.starts.p90_seconds > found.starts.p50_seconds > 23 * 3600 - 2
    assert found.starts.p90_seconds < 23 * 3600 + 600


def test_an_estimate_names_an_exhausted_quota_once(scene: Scene) -> None:
    over_quota(scene)
    found = scene.estimate()
    assert [reason.code for reason in found.reasons] == ["quota"]
    assert found.reasons[0].evidence["refused_with"] == "quota_exhausted"
    assert (found.position, found.starts) == (None, None), "the submit would be refused, not parked"


def held(parked: str, quota: Quota | None) -> Snapshot:
    line = QueueStatus(in_line=True, parked=parked, guess_seconds=10.0, position=2, slots={"busy": 1})
    return Snapshot(JobState.QUEUED, "m", quota=quota, servers=Servers(on=1, slots=1), queue_status=line)


@pytest.mark.parametrize(("parked", "quota", "p50"), [
    ("q", Quota(used=5.0, limit=5.0, left_seconds=100.0), 110.0),
    ("q", Quota(used=4.0, limit=5.0, left_seconds=100.0), 10.0),  # the quota was raised
    ("q", None, None),
    ("qm", Quota(used=5.0, limit=5.0, left_seconds=100.0), None),
    ("mq", Quota(used=5.0, limit=5.0, left_seconds=100.0), None),
])  # fmt: skip
def test_a_start_is_estimated_if_only_the_quota_delays_it(
    parked: str, quota: Quota | None, p50: float | None
) -> None:
    now = held(parked, quota)
    found = starts_in(now, explain(now))
    assert (found and found.p50_seconds) == p50


@pytest.mark.parametrize("quota", [Quota(used=4.0, limit=5.0, left_seconds=100.0), None])
def test_a_raised_quota_is_not_reported_as_exhausted(quota: Quota | None) -> None:
    """The tenant stays parked until the next run of the sweep."""
    used_up, longer = (
        explain(held("q", one))[0] for one in (Quota(used=5.0, limit=5.0, left_seconds=9.0), quota)
    )
    assert used_up.code == longer.code == "quota"
    assert "has used" in used_up.message
    assert "has GPU-seconds available again" in longer.message


def test_an_unknown_reason_is_reported_by_its_letter() -> None:
    found = explain(held("z", None))[0]
    assert (found.code, found.evidence) == ("tenant_held", {"reason": "z"})


@pytest.mark.parametrize(
    ("servers", "code"),
    [
        ([{"healthy": True}], None),
        ([{"healthy": None}], None),
        ([{"healthy": False}], "no_healthy_server"),
        ([{"healthy": False}, {"healthy": True}], None),
        ([{"healthy": False}, {"healthy": True, "slots": 0}], "no_healthy_server"),
        ([{"healthy": False}, {"healthy": True, "desired": DesiredState.OFF.value}], "no_healthy_server"),
        ([{"healthy": True, "slots": 0}], "no_slots"),
        ([{"healthy": True, "desired": DesiredState.DRAINING.value}], "draining"),
        ([], "no_server"),
    ],
)
def test_a_submit_and_an_explanation_use_the_same_servers(
    servers: list[dict[str, Any]], code: str | None
) -> None:
    rows_changed.send(None)
    model = make_model("zimg")
    for number, values in enumerate(servers):
        make_server(f"s{number}", model=model, **values)
    found = estimate_job("zimg", make_tenant().pk, 5, make_ports()).reasons
    codes = [reason.code for reason in found if reason.code != "index_away"]
    assert codes == ([code] if code else [])
    assert queries.has_capacity("zimg") == (code is None)
