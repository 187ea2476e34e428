"""The example package: found by its entry point, run by a real worker, removed without harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpus.models import ModelConfig
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.queries import rows_changed
from gpus.registry.registry import register_server
from gpus.runners.registry import RUNNERS, find_runner
from jobs.domain.states import JobState
from jobs.models import Attempt, Job
from jobs.operations.explain_job import explain_job
from tests.examples.installed import installed
from tests.examples.turnstile_server import TurnstileServer
from tests.support.by_process import run_sweep
from tests.support.factories import make_model
from tests.support.fake_leases import FakeLeases
from tests.support.waiting import wait_for
from tests.support.worker_harness import make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def server() -> Iterator[TurnstileServer]:
    with TurnstileServer() as server:
        yield server


def register(**fields: Any) -> ModelConfig:
    leases = FakeLeases()
    return register_server(
        model="t",
        server="gpu-1",
        endpoint="http://127.0.0.1:9",
        slots=1,
        by="test",
        leases=lambda fleet: leases,  # type: ignore[arg-type, return-value]
        model_fields={"model_type": "turnstile", **fields},
    ).config


def test_its_type_is_known_while_it_is_installed(tmp_path: Path) -> None:
    with pytest.raises(RegistryRefused, match="'turnstile'"):
        register()
    with installed("runner_package", tmp_path):
        assert register().model_type == "turnstile"
        assert not RUNNERS.unusable()
        with pytest.raises(RegistryRefused, match="no / in its name"):
            register(remote_model="a/b")
    assert find_runner("turnstile") is None


def test_a_job_is_run_by_it_and_waits_once_it_is_removed(
    server: TurnstileServer, tmp_path: Path, valkey: Any, fleet: str
) -> None:
    with installed("runner_package", tmp_path):
        model = make_model("m", model_type="turnstile", poll_interval=0.05)
        harness = make_harness(valkey.url, fleet, model, server.url)
        job = harness.submit({"prompt": "x"})
        harness.worker().work("m")
        wait_for(lambda: state(job) == JobState.COMPLETED)
        assert Job.objects.get(id=job.id).result == {"prompt": "x"}
        assert Attempt.objects.get(job=job).remote_id == "t/1"
    rows_changed.send(None)
    run_sweep("mirror_registry", harness.ports)
    waiting = harness.submit({"prompt": "y"})
    harness.worker().work("m")
    assert state(waiting) == JobState.QUEUED
    waiting.refresh_from_db()
    assert explain_job(waiting, harness.ports).reasons[0].code == "no_runner"
    harness.close()
    assert len(server.seen) == 1
