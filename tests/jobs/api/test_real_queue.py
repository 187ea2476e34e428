"""The routes over the real lease layer: registrations are live, and estimates come from the real queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

import jobs.ports
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisLeases
from tests.support.api_harness import Account, ApiHarness

SUBMIT, BATCH = "/api/v1/queue/submit", "/api/v1/queue/submit-batch"
JOB = {"model": "flux", "payload": {}}
SERVER = {"model": "flux", "server": "s1", "endpoint": "http://10.0.0.1/generate", "slots": 2}


@pytest.fixture
def leases(
    valkey: EmbeddedValkey, fleet: str, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> RedisLeases:
    store = RedisLeases(connect(valkey.url), fleet)
    assert store.begin_rebuild("test")
    while not store.wipe("test"):
        pass
    store.open_generation("test")
    ports = replace(api.ports, leases=lambda fleet: store)
    monkeypatch.setattr(jobs.ports, "production_ports", lambda: ports)
    return store


def test_a_registered_server_takes_jobs_and_the_others_are_queued(
    operator: Account, acme: Account, leases: RedisLeases, api: ApiHarness
) -> None:
    assert operator.client.post("/api/v1/admin/register", SERVER, format="json").json()["live"] is True
    first = acme.client.post(SUBMIT, JOB, format="json").json()
    assert first["outcome"] == "leased"
    body = acme.client.post(BATCH, {"jobs": [JOB] * 10}, format="json").json()["jobs"]
    assert {item["outcome"] for item in body} <= {"leased", "queued"}
    assert body[-1]["outcome"] == "queued"
    assert body[-1]["position"] > body[-3]["position"]
    assert body[-1]["starts_in"] == {"p50_seconds": 5.5, "p90_seconds": 22.0, "seen": 0}
    why = acme.client.get(f"/api/v1/queue/jobs/{body[-1]['job_id']}/explain").json()
    assert (why["position"], why["starts_in"]) == (body[-1]["position"], body[-1]["starts_in"])
    assert api.wakes
    lease = leases.claim("flux", worker="w", attempt_id="a" * 26)
    assert lease is not None
    assert lease.job_id == first["job_id"], "first come, first served"
    stats = acme.client.get("/api/v1/queue/stats").json()["models"][0]
    assert stats["queued"] == 11
    assert stats["slots"]["leased"] == 1
    assert stats["queued_gpu_seconds"] > 0
    assert operator.client.get("/readyz").status_code == 200


def test_fewer_slots_take_effect_at_once(operator: Account, acme: Account, leases: RedisLeases) -> None:
    operator.client.post("/api/v1/admin/register", SERVER, format="json")
    operator.client.post("/api/v1/admin/register", SERVER | {"slots": 1}, format="json")
    acme.client.post(BATCH, {"jobs": [JOB] * 3}, format="json")
    assert leases.claim("flux", worker="w", attempt_id="a" * 26) is not None
    assert leases.claim("flux", worker="w", attempt_id="b" * 26) is None
    operator.client.post("/api/v1/admin/register", SERVER | {"slots": 2}, format="json")
    assert leases.claim("flux", worker="w", attempt_id="c" * 26) is not None


@pytest.mark.database
def test_a_cancelled_job_is_not_in_the_queue(operator: Account, acme: Account, leases: RedisLeases) -> None:
    operator.client.post("/api/v1/admin/register", SERVER, format="json")
    job_id = acme.client.post(SUBMIT, JOB, format="json").json()["job_id"]
    assert acme.client.post(f"/api/v1/queue/jobs/{job_id}/cancel").status_code == 200
    assert leases.claim("flux", worker="w", attempt_id="a" * 26) is None


def test_a_repeated_request_does_not_queue_a_running_job_again(
    operator: Account, acme: Account, leases: RedisLeases
) -> None:
    operator.client.post("/api/v1/admin/register", SERVER, format="json")
    acme.client.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k")
    assert leases.claim("flux", worker="w", attempt_id="a" * 26) is not None
    again = acme.client.post(SUBMIT, JOB, format="json", HTTP_IDEMPOTENCY_KEY="k").json()
    assert again["outcome"] == "leased"
    assert leases.claim("flux", worker="w", attempt_id="b" * 26) is None
