"""Jobs and dead letters name their run and their node: in the API, the client and the commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatcher_client.job import read_job
from dispatcher_project import wiring
from jobs import ports
from jobs.models import Job
from tests.support.api_harness import Account, ApiHarness
from tests.support.api_jobs import make_job
from tests.support.terminal import run_command
from tests.support.workflow_api import advance, post
from workflows.execution.reads import nodes_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database, pytest.mark.usefixtures("zimg")]
TWICE = {"nodes": {"all": {"model": "zimg", "map": {"count": 2}}}}


@pytest.fixture
def run_id(acme: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run with two jobs, beside a job without one."""
    real = replace(api.ports, nodes_of=nodes_of)
    monkeypatch.setattr(ports, "production_ports", lambda: real)
    acme.client.put("/api/v1/workflows/w", TWICE, format="json")
    run_id = str(post(acme, "workflows/w/runs").json()["run_id"])
    advance(api, run_id)
    make_job(acme.tenant, "queued", model="zimg")
    return run_id


def of_run(run_id: str) -> dict[str | None, str | None]:
    return {"all[0]": run_id, "all[1]": run_id, None: None}


def test_jobs_name_their_run_and_node(acme: Account, run_id: str) -> None:
    listed = acme.client.get("/api/v1/queue/jobs").json()["results"]
    assert {one["node"]: one["run_id"] for one in listed} == of_run(run_id)
    for one in listed:
        job = read_job(acme.client.get(f"/api/v1/queue/jobs/{one['job_id']}").json())
        assert (job.run_id, job.node) == (one["run_id"], one["node"])


def test_so_do_dead_letters(operator: Account, run_id: str) -> None:
    Job.objects.update(state="failed", finished_at=ports.production_ports().clock.now())
    listed = operator.client.get("/api/v1/admin/dlq").json()["results"]
    assert {one["node"]: one["run_id"] for one in listed} == of_run(run_id)


def test_and_the_commands(run_id: str) -> None:
    Job.objects.update(state="failed", finished_at=ports.production_ports().clock.now())
    letters = run_command("dlq", "--json").json
    assert {one["node"]: one["run_id"] for one in letters} == of_run(run_id)
    jobs = run_command("jobs", "--json").json["results"]
    assert {one["node"]: one["run_id"] for one in jobs} == of_run(run_id)
    of_map = next(one["job_id"] for one in letters if one["node"] == "all[1]")
    assert run_command("job", of_map, "--json").json["node"] == "all[1]"
    assert f"node all[1] of the run {run_id}" in run_command("job", of_map).said
    assert f"{run_id} all[1]" in run_command("dlq").said


def test_the_dispatchers_processes_look_nodes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "after_seconds", lambda seconds, work: None)
    assert wiring.make_production_ports().nodes_of is nodes_of
