"""A server whose answers have files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from artifacts.models import Artifact
from gpus.models import ModelConfig
from jobs.domain.states import JobState
from jobs.models import Attempt, Job
from tests.support.factories import make_model
from tests.support.servers.answering import Answering, answering
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 20_000


@pytest.fixture
def server() -> Iterator[Answering]:
    with answering(Answering()) as server:
        yield server


@pytest.fixture
def harness(valkey, fleet, server, settings, tmp_path) -> Iterator[WorkerHarness]:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0, artifact_save_seconds=0.5)
    model = make_model("m", max_retries=1, max_run_seconds=60.0)
    harness = make_harness(valkey.url, fleet, model, f"{server.url}/run")
    yield harness
    harness.close()


def limited(settings: Any, **values: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **values)


def configure(**values: Any) -> None:
    ModelConfig.objects.filter(name="m").update(**values)


def run_once(harness: WorkerHarness, until: JobState = JobState.COMPLETED) -> Job:
    job = harness.submit()
    harness.worker().work("m")
    wait_for(lambda: state(job) not in (JobState.QUEUED, JobState.RUNNING))
    job.refresh_from_db()
    assert job.state == until, job.error_message
    return job


def answer(server: Answering, result: Any, **envelope: Any) -> None:
    body = json.dumps({"status": "success", "result": result, **envelope}).encode()
    server.post = lambda payload: body


def content(harness: WorkerHarness, reference: Any) -> tuple[bytes, str]:
    row = Artifact.objects.get(pk=reference["$artifact"])
    return b"".join(harness.ports.artifact_store.chunks(row.key)), row.content_type


def failed(harness: WorkerHarness, error: type[Exception], code: str, *, retried: bool = False) -> str:
    job = run_once(harness, JobState.RETRYING if retried else JobState.FAILED)
    assert job.error_code == code
    assert not Artifact.objects.exists()
    return str(job.error_message or Attempt.objects.get().error_message)
