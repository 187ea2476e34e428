"""GPU servers without a health endpoint get jobs like any other, with warnings about the missing proof."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.cli.doctor import fleet as doctor
from dispatcher_project.cli.doctor.finding import Level, View
from gpus.models import AuditEntry, ModelConfig, QuarantinedSlot, Server
from gpus.runners.transport import HttpTransport
from tests.support.api_harness import Account, ApiHarness
from tests.support.factories import make_server
from tests.support.limits import JOB, REJECT, submit
from tests.support.ports import free_port
from tests.support.problems import problem
from tests.support.servers.health_server import HealthServer
from tests.support.servers.plain_server import PlainServer

REGISTER = "/api/v1/admin/register"


@pytest.fixture(params=[404, 405, 501])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlainServer]:
    with PlainServer(tmp_path, request.param) as server:
        yield server


def register(operator: Account, api: ApiHarness, url: str, **fields: Any) -> dict[str, Any]:
    api.transport = HttpTransport()
    body = {"model": "zimg", "server": "box", "endpoint": f"{url}/run", "slots": 1, **fields}
    answer = operator.client.post(REGISTER, body, format="json")
    assert answer.status_code in (200, 201), answer.content
    return dict(answer.json())


def test_registering_a_plain_server_returns_a_warning(
    operator: Account, api: ApiHarness, plain: PlainServer
) -> None:
    (warning,) = register(operator, api, plain.url, max_run_seconds=300)["warnings"]
    assert warning["code"] == "no_health_endpoint"
    for part in (f"{plain.url}/health", "300 s", "health_path", "cancel_endpoint_template"):
        assert part in warning["detail"]
    row = Server.objects.get(name="box")
    assert (row.healthy, row.tells_health, bool(row.checked_at)) == (True, False, True)
    content = operator.client.get("/api/v1/admin/servers/box").json()
    assert (content["healthy"], content["tells_health"]) == (True, False)


def test_a_plain_server_has_capacity_and_no_finding(
    operator: Account, acme: Account, api: ApiHarness, plain: PlainServer
) -> None:
    register(operator, api, plain.url)
    api.leases.free_slots = 1
    accepted = submit(acme, REJECT)
    assert (accepted.status_code, accepted.json()["outcome"]) == (202, "leased")
    api.leases.free_slots = 0
    waiting = submit(acme, JOB).json()
    assert (waiting["wait_reason"], waiting["starts_in"] is None) == ("busy", False)
    found = acme.client.get(f"/api/v1/queue/jobs/{waiting['job_id']}/explain").json()
    assert "no_healthy_server" not in [reason["code"] for reason in found["reasons"]]
    assert found["starts_in"] is not None
    metrics = operator.client.get("/metrics").content.decode()
    assert 'dispatcher_server_healthy{server="box"} 1.0' in metrics
    view = View(
        api.ports,
        api.clock.now(),
        dict,
        lambda: {},
        lambda path: 0,
        Path(),
        lambda: 0.0,
        lambda: (200, {}),
    )
    found_by_doctor = list(doctor.servers(view))
    assert {finding.level for finding in found_by_doctor} == {Level.OK}
    assert any("without a health endpoint: box" in finding.summary for finding in found_by_doctor)


def test_a_server_with_a_health_endpoint_has_no_warning(operator: Account, api: ApiHarness) -> None:
    with HealthServer() as gpu:
        assert register(operator, api, gpu.url)["warnings"] == []
    assert Server.objects.get().tells_health is True


def test_a_silent_or_unhealthy_server_is_reported(operator: Account, api: ApiHarness) -> None:
    (warning,) = register(operator, api, f"http://127.0.0.1:{free_port()}")["warnings"]
    assert warning["code"] == "server_unreachable"
    with HealthServer() as gpu:
        gpu.status = 503
        moved, warning = register(operator, api, gpu.url)["warnings"]
    assert moved["code"] == "other_address"
    assert warning["code"] == "server_unhealthy"
    assert "503" in warning["detail"]


def test_two_servers_under_one_name_are_reported(operator: Account, api: ApiHarness) -> None:
    with HealthServer() as one, HealthServer() as two:
        register(operator, api, one.url)
        assert register(operator, api, f"{one.url}/other")["warnings"] == [], "the same server"
        (warning,) = register(operator, api, two.url)["warnings"]
        assert warning["code"] == "other_address"
        assert f"was at {one.url}/other/run until now" in warning["detail"]
        assert "register each under a name of its own" in warning["detail"]
        far = two.url.replace("127.0.0.1", "127.0.0.2")
        (warning, *_) = register(operator, api, far, model="upper", pool="zimg")["warnings"]
        assert f"has models at {two.url}/run, too, with the same slots and headers" in warning["detail"]
        near = f"http://127.0.0.2:{free_port()}"
        codes = [one["code"] for one in register(operator, api, near, model="third", pool="zimg")["warnings"]]
        assert codes == ["other_address", "server_unreachable"], "zimg is on another host"


def test_a_health_path_is_a_normal_field(operator: Account, api: ApiHarness) -> None:
    with HealthServer() as gpu:
        assert register(operator, api, gpu.url, health_path="/healthz")["warnings"] == []
        assert gpu.asked[0]["path"] == "/healthz"
    url = "/api/v1/admin/model-configs/zimg"
    assert operator.client.get(url).json()["health_path"] == "/healthz"
    refused = operator.client.patch(url, {"health_path": "//other/health"}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_health_path")


def test_an_operator_frees_a_slot_and_a_tenant_does_not(
    operator: Account, acme: Account, api: ApiHarness, zimg: ModelConfig
) -> None:
    server = make_server("box", model=zimg)
    now = api.clock.now()
    QuarantinedSlot.objects.create(
        server=server, slot=0, attempt_id="a" * 26, job_id="j" * 26, model="zimg", reason="server_lost",
        since=now, until=now + timedelta(minutes=10),
    )  # fmt: skip
    listed = "/api/v1/admin/quarantine"
    freed = "/api/v1/admin/servers/box/slots/0/free"
    assert (acme.client.get(listed).status_code, acme.client.post(freed).status_code) == (403, 403)
    (result,) = operator.client.get(listed).json()["results"]
    assert (result["slot"], result["reason"], result["model"]) == ("box/0", "server_lost", "zimg")
    answer = operator.client.post(freed, {"reason": "I looked"}, format="json")
    assert (answer.status_code, answer.json()["attempts"]) == (200, ["a" * 26])
    entry = AuditEntry.objects.get(action="free_slot")
    assert (entry.target, entry.detail["reason"]) == ("slot:box/0", "I looked")
    assert entry.actor.startswith("key:")
    assert operator.client.get(listed).json()["results"] == []
    problem(operator.client.post(freed), 409, "slot_not_quarantined")
    for unknown in ("nobody/slots/0", "box/slots/9"):
        problem(operator.client.post(f"/api/v1/admin/servers/{unknown}/free"), 404, "unknown_slot")
