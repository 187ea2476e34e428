from __future__ import annotations

import pytest

from gpus.models import AuditEntry, ModelConfig, Pause
from tests.support.api_harness import Account, ApiHarness
from tests.support.problems import problem

ADMIN = "/api/v1/admin"


@pytest.mark.database
def test_a_tenant_is_paused_by_its_name_and_resumed(
    operator: Account, acme: Account, api: ApiHarness, zimg: ModelConfig
) -> None:
    body = operator.client.post(f"{ADMIN}/tenants/acme/pause", {"reason": "unpaid"}, format="json").json()
    assert body == {"kind": "tenant", "name": "acme", "paused": True, "changed": True, "live": True}
    assert api.leases.paused == {"zimg": {str(acme.tenant.pk)}}
    [pause] = operator.client.get(f"{ADMIN}/pauses").json()["results"]
    assert (pause["kind"], pause["name"], pause["reason"]) == ("tenant", "acme", "unpaid")
    api.wakes.clear()
    body = operator.client.post(f"{ADMIN}/tenants/acme/resume").json()
    assert (body["paused"], body["changed"], api.leases.paused) == (False, True, {"zimg": set()})
    assert api.wakes
    assert list(AuditEntry.objects.order_by("id").values_list("action", "target")) == [
        ("pause_tenant", "tenant:acme"),
        ("resume_tenant", "tenant:acme"),
    ]


def test_a_paused_tenant_can_submit(operator: Account, acme: Account, zimg: ModelConfig) -> None:
    operator.client.post(f"{ADMIN}/tenants/acme/pause")
    answer = acme.client.post("/api/v1/queue/submit", {"model": "zimg", "payload": {}}, format="json")
    assert (answer.status_code, answer.json()["outcome"]) == (202, "queued")


@pytest.mark.parametrize("name", ["nope", "a%20b", "%00", "x" * 65])
def test_an_unknown_tenant_cannot_be_paused(operator: Account, name: str) -> None:
    for verb in ("pause", "resume"):
        answer = operator.client.post(f"{ADMIN}/tenants/{name}/{verb}")
        problem(answer, 404, "unknown_tenant", "/tenant")
    assert not Pause.objects.exists()
