"""A GPU server that refuses the headers that it is registered with: its jobs keep their tries and wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from foundation.secrets import encrypt
from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.errors import AccessForbidden, CredentialsRefused
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import CircuitRules
from gpus.models import Server
from gpus.protocol import CircuitKind, CircuitState
from gpus.runners.refusals import HEADERS_HINT
from jobs.domain.access import shown_error
from jobs.domain.retry import AttemptHistory, Ending, RetryPolicy, decide_end
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from tests.support.factories import make_model
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

TOKEN = "correct-horse-battery-staple"
FAILURES = 2
JOBS = 6


@pytest.fixture
def kind(request) -> str:
    return str(getattr(request, "param", "sync"))


@pytest.fixture
def harness(valkey, fleet, kind) -> Iterator[WorkerHarness]:
    """On a node with a token, registered without it; a single try per job."""
    node = Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=1, port=0, token=TOKEN))
    node.start()
    model = make_model("m", model_type=kind, max_retries=0)
    harness = make_harness(valkey.url, fleet, model, f"{node.url}/generate", node=node)
    rules = CircuitRules(failures=FAILURES, rest_seconds=600.0)
    harness.leases = RedisLeases(harness.leases._scripts._client, fleet, circuit_rules=rules)
    harness.ports = replace(harness.ports, leases=lambda _: harness.leases)
    yield harness
    harness.close()
    node.stop()


def is_open(harness: WorkerHarness) -> bool:
    found = harness.leases.circuits("m", ["gpu-1"]).servers.get("gpu-1")
    return found is not None and found.state is CircuitState.OPEN


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["sync", "async", "cog", "openai", "ollama"], indirect=True)
def test_a_missing_token_costs_no_try_and_opens_the_servers_circuit(harness: WorkerHarness) -> None:
    jobs = [harness.submit({"prompt": "x"}) for _ in range(JOBS)]
    worker = harness.worker()
    wait_for(lambda: (worker.work("m"), is_open(harness))[1])
    wait_for(lambda: not Job.objects.filter(state=JobState.RUNNING).exists())
    assert {state(job) for job in jobs} <= {JobState.QUEUED, JobState.RETRYING}
    assert set(Job.objects.values_list("tries", flat=True)) == {0}
    attempts = Attempt.objects.all()
    assert attempts.count() == FAILURES
    assert {one.state for one in attempts} == {AttemptState.REFUSED}
    assert {one.error_code for one in attempts} == {CredentialsRefused.code}
    assert all(HEADERS_HINT in one.error_message for one in attempts)


@pytest.mark.django_db(transaction=True)
def test_jobs_run_once_the_servers_header_is_set(harness: WorkerHarness) -> None:
    jobs = [harness.submit({"seconds": 0.001}) for _ in range(JOBS)]
    worker = harness.worker()
    wait_for(lambda: (worker.work("m"), is_open(harness))[1])
    headers = json.dumps({"Authorization": f"Bearer {TOKEN}"})
    Server.objects.update(headers_encrypted=encrypt(headers))
    harness.leases.reset_circuit(CircuitKind.SERVER, "gpu-1", "m")
    wait_for(lambda: (worker.work("m"), all(state(job) == JobState.COMPLETED for job in jobs))[1])
    assert set(Job.objects.values_list("tries", flat=True)) == {0}


def test_a_forbidden_request_costs_a_try_and_goes_elsewhere() -> None:
    """A filter that forbids one payload would else be asked without end."""
    decision = decide_end(Ending(AccessForbidden("403")), AttemptHistory(), RetryPolicy())
    assert (decision.job, decision.counted, decision.elsewhere) == (JobState.RETRYING, True, True)
    last = decide_end(Ending(AccessForbidden("403")), AttemptHistory(tries=50), RetryPolicy())
    assert last.job is JobState.FAILED


def test_a_tenant_does_not_see_the_servers_message() -> None:
    error = shown_error(CredentialsRefused.code, "401: 10.0.0.7 knows no such token", in_full=False)
    assert error == {
        "code": "credentials_refused",
        "message": "The GPU server did not accept the dispatcher's credentials.",
    }
