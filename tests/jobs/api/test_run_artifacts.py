"""POST /tasks/artifacts/{job_id}: a GPU server promises an output of its run."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from artifacts.models import Artifact, RunUpload
from artifacts.store.local import LocalStore
from foundation.ids import new_id
from foundation.secrets import signed
from gpus.models import ModelConfig
from jobs.execution.pushed_results import PUSH_TOKEN
from jobs.models import Attempt, Job
from tests.support.factories import make_job, make_running
from tests.support.problems import problem

DATA = b"film"
BODY = {"bytes": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest(), "name": "../film \u2603.mp4"}


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> None:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)


@pytest.fixture
def job(zimg: ModelConfig) -> Job:
    return make_job(zimg, at=timezone.now())


@pytest.fixture
def attempt(job: Job) -> str:
    return make_running(job, at=timezone.now())


def send(client: APIClient, job_id: str, attempt: str, body: Any = BODY) -> Any:
    token = signed(attempt, purpose=PUSH_TOKEN)
    url = f"/api/v1/tasks/artifacts/{job_id}"
    return client.post(url, body, format="json", HTTP_X_CALLBACK_TOKEN=token)


def test_a_promise_answers_the_upload_and_is_no_artifact_yet(
    anonymous: APIClient, job: Job, attempt: str
) -> None:
    answer = send(anonymous, job.pk, attempt)
    assert answer.status_code == 201, answer.json()
    row = RunUpload.objects.get()
    assert answer.json()["id"] == row.artifact
    assert answer.json()["exists"] is False
    assert f"/store/a/{job.tenant_id}/{BODY['sha256']}?" in answer.json()["upload"]["url"]
    assert (row.attempt, row.name) == (attempt, BODY["name"])
    assert not Artifact.objects.exists()
    assert send(anonymous, job.pk, attempt).json()["id"] == row.artifact


@pytest.mark.parametrize(
    "bad", [{"bytes": -1}, {"bytes": "4"}, {"sha256": "../x"}, {"sha256": "A" * 64}, {"name": ""}, {"x": 1}]
)
def test_bad_promises_are_refused(anonymous: APIClient, job: Job, attempt: str, bad: dict[str, Any]) -> None:
    answer = send(anonymous, job.pk, attempt, {**BODY, **bad})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == f"/{next(iter(bad))}"
    assert not RunUpload.objects.exists()


def test_the_token_of_the_attempt_is_required(anonymous: APIClient, job: Job, attempt: str) -> None:
    problem(
        anonymous.post(f"/api/v1/tasks/artifacts/{job.pk}", BODY, format="json"), 401, "invalid_push_token"
    )
    problem(send(anonymous, new_id(), attempt), 404, "unknown_job")
    other = make_job("zimg", at=timezone.now())
    problem(send(anonymous, other.pk, attempt), 404, "unknown_job")
    Attempt.objects.filter(pk=attempt).update(state="completed", finished_at=timezone.now())
    problem(send(anonymous, job.pk, attempt), 409, "attempt_over")


def test_the_limits_name_themselves(anonymous: APIClient, job: Job, attempt: str, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, run_artifact_bytes=3)
    answer = send(anonymous, job.pk, attempt)
    problem(answer, 429, "too_many_run_artifacts")
    assert "DISPATCHER_RUN_ARTIFACT_BYTES" in answer.json()["detail"]
    settings.DISPATCHER = replace(settings.DISPATCHER, max_artifact_bytes=3)
    problem(send(anonymous, job.pk, attempt), 413, "artifact_too_large")


def test_an_output_that_the_store_does_not_take_in_one_request_is_refused(
    anonymous: APIClient, job: Job, attempt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "max_put_bytes", 3)
    answer = send(anonymous, job.pk, attempt)
    problem(answer, 413, "artifact_too_large")
    assert "up to 3 bytes in one PUT, not 4" in answer.json()["detail"]
    assert not RunUpload.objects.exists()
