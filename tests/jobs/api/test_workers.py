"""The list of processes over HTTP and on the command line."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

from django.core.management import call_command
from django.db.models import F

from gpus.models import Process
from gpus.registry import processes
from tests.support.api_harness import Account
from tests.support.factories import make_job, make_model, make_running

LIST = "/api/v1/admin/workers"


def test_operators_see_live_processes_and_their_servers(operator: Account, acme: Account) -> None:
    make_model("zimg")
    make_running(make_job(tenant=acme.tenant), slot="gpu-1/0", worker="host:1:abc")
    processes.record_heartbeat("host:1:abc", Process.Kind.GPU, 6, {}, ["gpu.zimg", "gpu.flux"])
    processes.record_heartbeat("host:2:def", Process.Kind.SWEEPS, 6, {}, ["sweeps"])
    Process.objects.filter(name="host:2:def").update(beat_at=F("beat_at") - timedelta(hours=1))

    answer = operator.client.get(LIST)
    assert answer.status_code == 200, answer.content
    gpu, sweeps = answer.json()["results"]
    assert (gpu["name"], gpu["kind"], gpu["live"], gpu["layout"]) == ("host:1:abc", "gpu", True, 6)
    assert (gpu["queues"], gpu["running"], gpu["servers"]) == (["gpu.flux", "gpu.zimg"], 1, ["gpu-1"])
    assert 0 <= gpu["last_beat_seconds"] < 60
    assert (sweeps["live"], sweeps["running"], sweeps["queues"]) == (False, 0, ["sweeps"])
    assert 3600 <= sweeps["last_beat_seconds"] < 3660

    results, result = StringIO(), StringIO()
    call_command("workers", stdout=results)
    assert "1 running on 1 server" in results.getvalue()
    assert "SILENT" in results.getvalue()
    call_command("workers", "--json", stdout=result)
    assert [row["name"] for row in json.loads(result.getvalue())] == ["host:1:abc", "host:2:def"]


def test_a_tenant_sees_no_processes(acme: Account) -> None:
    assert acme.client.get(LIST).status_code == 403
