"""Telemetry of pinned workers in metrics and pages, from handwritten values, so that no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from admin_ui.dashboard.labels import measured
from gpus.health.pinned_servers import heartbeat_report, register_pinned
from gpus.leasing.values import Heartbeat
from gpus.models import Server
from gpus.reports import read_fleet
from tests.support.api_harness import ApiHarness
from tests.support.scrapes import scrape

pytestmark = pytest.mark.django_db

TELEMETRY: dict[str, Any] = {
    "warm": ["flux"],
    "cpu_percent": 12.5,
    "ram_used_mb": 2048,
    "ram_total_mb": 4096,
    "models_ram_mb": 700,
    "gpu": {
        "utilisation": 87.0, "used_mb": 8192.0, "total_mb": 16384.0, "temperature": 61, "power": 250.0,
        "ecc_errors": 1, "throttled": [], "xids": {"79": 2}, "processes": {"4711": 8000.0, "4712": None},
    },
}  # fmt: skip


@pytest.fixture
def box(api: ApiHarness) -> Server:
    return register_pinned(
        server="box", host="box.1", slots=1, models={"flux": {}}, pool="p", by="cli:t",
        leases=lambda fleet: api.leases, at=timezone.now(),
    ).server  # fmt: skip


def beat(api: ApiHarness, age: float, telemetry: dict[str, Any] | None = None) -> None:
    api.leases.heard["box"] = Heartbeat(age, heartbeat_report("box.1", [], telemetry=telemetry or TELEMETRY))


def test_a_scrape_reports_the_gpu_the_machine_and_the_warm_models(
    anonymous: APIClient, api: ApiHarness, box: Server
):
    beat(api, 3.0)
    found = scrape(anonymous)
    assert found['dispatcher_worker_heartbeat_age_seconds{server="box"}'] == 3.0
    assert found['dispatcher_warm_models{model="flux",server="box"}'] == 1
    assert found['dispatcher_gpu_utilisation_percent{server="box"}'] == 87
    assert found['dispatcher_gpu_memory_used_mb{server="box"}'] == 8192
    assert found['dispatcher_gpu_ecc_errors{server="box"}'] == 1
    assert found['dispatcher_gpu_processes{server="box"}'] == 2
    assert found['dispatcher_gpu_xids{server="box",xid="79"}'] == 2
    assert found['dispatcher_machine_memory_used_mb{server="box"}'] == 2048
    assert found['dispatcher_models_memory_mb{server="box"}'] == 700


def test_outdated_telemetry_is_not_reported(anonymous: APIClient, api: ApiHarness, box: Server):
    beat(api, 16.0)
    found = scrape(anonymous)
    assert found['dispatcher_worker_heartbeat_age_seconds{server="box"}'] == 16.0
    assert not any("dispatcher_gpu_" in name for name in found)


def test_the_fleet_page_shows_telemetry_beside_the_server(
    api: ApiHarness, box: Server, monkeypatch: pytest.MonkeyPatch
):
    beat(api, 1.0)
    monkeypatch.setattr(api.leases, "slots_of", lambda names: [], raising=False)
    (row,) = read_fleet([box], lambda fleet: api.leases, timezone.now()).rows
    assert row.telemetry == TELEMETRY
    assert {cell.warm_models for cell in row.cells} == {("flux",)}
    assert measured(row.telemetry) == [
        ("GPU", "87 %"),
        ("VRAM", "8.0 of 16.0 GB"),
        ("Temperature", "61 °C"),
        ("Power", "250 W"),
        ("CPU", "12 %"),
        ("RAM", "2.0 of 4.0 GB"),
        ("Loaded", "flux"),
    ]


def test_without_a_gpu_only_the_machine_is_reported():
    assert measured({"warm": [], "gpu_error": "GPU is lost"}) == [
        ("GPU", "can't be read: GPU is lost"),
        ("Loaded", "none"),
    ]


def test_absurd_telemetry_is_no_metric_and_breaks_no_page(
    anonymous: APIClient, api: ApiHarness, box: Server
) -> None:
    absurd = {"warm": "flux", "cpu_percent": "much", "gpu": {"power": 1e300, "utilisation": float("nan")}}
    report = heartbeat_report("box.1", []) | {"telemetry": absurd | {"gpu_error": 7}}
    api.leases.heard["box"] = Heartbeat(1.0, report)
    found = scrape(anonymous)
    assert found['dispatcher_gpu_processes{server="box"}'] == 0
    assert not any(name.startswith(("dispatcher_gpu_power", "dispatcher_machine")) for name in found)
    report["telemetry"] = {"gpu": [{}] * 10_000}
    assert scrape(anonymous)['dispatcher_worker_heartbeat_age_seconds{server="box"}'] == 1.0
