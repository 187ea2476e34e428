"""A workflow over two kinds of queue: an ingest worker without a GPU, and the pool of a GPU server."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher_client import Client, Workflow
from tests.scenarios.pinned_worker import PinnedWorker
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


def test_a_node_runs_on_a_worker_that_serves_the_pool_ingest(system: System, tmp_path: Path) -> None:
    worker = PinnedWorker(
        system, "ingest-1", tmp_path, slots=2, models="fetch=gpu_host.local.demo_models:Digest", pool="ingest"
    )
    try:
        worker.wait()
        assert system.operator.ask("GET", "/admin/model-configs/fetch")["pool"] == "ingest"
        wf = Workflow("ingesting", inputs={"text": str})
        fetched = wf.map(count=2).model("fetch", key="fetched", text=wf.inputs.text)
        wf.output(fetched=fetched)
        client = Client(system.facts["url"], system.facts["tenant_key"])
        client.workflows.put("ingesting", wf)
        run = client.workflows.wait(client.workflows.start("ingesting", {"text": "a"}).run_id, 60)
        jobs = [node.job_id for node in client.workflows.nodes(run.run_id) if node.job_id]
        system.tenant.accepted += len(jobs)
        assert run.status == "completed", run.error
        assert len(run.output["fetched"]) == 2
        assert {system.tenant.job(job_id)["attempts"][0]["server"] for job_id in jobs} == {"ingest-1"}
    finally:
        worker.stop()
        wait_for(lambda: worker.process.poll() is not None, what="the worker to end")
