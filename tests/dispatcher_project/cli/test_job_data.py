"""`job result ID` prints a job's result and saves its files; `job erase ID` erases its data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from artifacts.models import Artifact, ArtifactUse
from foundation.ids import new_id
from gpus.models import AuditEntry, Process
from jobs.models import Job
from tests.support.factories import make_job, make_model
from tests.support.queue_harness import QueueHarness, queue
from tests.support.terminal import Terminal, terminal

__all__ = ["queue", "terminal"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def job(queue: QueueHarness, tmp_path: Path, settings: Any) -> Job:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
    return make_job(make_model("m"))


def store_artifact(queue: QueueHarness, job: Job, data: bytes, name: str, *, is_result: bool = False) -> str:
    now = timezone.now()
    row = Artifact(
        id=new_id(), tenant_id=job.tenant_id, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data),
        name=name, state="stored", created_at=now, expires_at=now, stored_at=now,
    )  # fmt: skip
    queue.ports.artifact_store.write(row.key, len(data), [data])
    row.save(force_insert=True)
    ArtifactUse.objects.create(artifact=row, job=job.id, is_result=is_result)
    return row.pk


def end(job: Job, state: str, **values: Any) -> None:
    Job.objects.filter(id=job.id).update(state=state, finished_at=timezone.now(), **values)


def test_the_result_is_printed_and_its_files_are_saved(
    queue: QueueHarness, terminal: Terminal, job: Job, tmp_path: Path
) -> None:
    early = terminal("job", "result", job.id)
    assert (early.status, "it has no result yet" in early.said) == (2, True)
    films = [
        store_artifact(queue, job, data, name)
        for data, name in (
            (b"one", "a.bin"),
            (b"two", "a.bin"),
            (b"3", ""),
            (b"4", "../up.bin"),
            (b"5", ".."),
        )
    ]
    result = {"text": "done", "files": [{"$artifact": one} for one in films]}
    end(job, "completed", result=result)
    assert terminal("job", "result", job.id.lower()).json == result
    folder = tmp_path / "out" / "here"
    assert terminal("job", "result", job.id, "--json", "--download", str(folder)).json == result
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        "a.bin": b"one",
        f"{films[1]}-a.bin": b"two",
        films[2]: b"3",
        "up.bin": b"4",
        films[4]: b"5",
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["here"]


def test_a_long_result_is_read_from_its_artifact(queue: QueueHarness, terminal: Terminal, job: Job) -> None:
    whole = {"text": "x" * 5000}
    artifact_id = store_artifact(queue, job, json.dumps(whole).encode(), "result.json", is_result=True)
    end(job, "completed", result={"$artifact": artifact_id})
    assert terminal("job", "result", job.id).json == whole


def test_a_failed_job_has_no_result(terminal: Terminal, job: Job) -> None:
    end(job, "failed", error_code="run_failed", error_message="no such prompt")
    shown = terminal("job", "result", job.id)
    assert (shown.status, shown.said) == (1, "failed run_failed no such prompt\n")


def test_the_data_of_a_job_is_erased_after_a_question(
    queue: QueueHarness, terminal: Terminal, job: Job
) -> None:
    early = terminal("job", "erase", job.id, "--yes")
    assert (early.status, "has not ended" in early.said) == (2, True), early.said
    film = store_artifact(queue, job, b"film", "film.bin")
    end(job, "completed", result={"film": {"$artifact": film}})
    assert terminal("job", "erase", job.id).status == 2, "it asks"
    assert Job.objects.get().result["film"]
    assert (
        terminal("job", "erase", job.id, "--yes").said == f"{job.id}: its data is erased, with 1 artifact\n"
    )
    assert "$erased" in Job.objects.get().result
    assert Artifact.objects.get().state == "gone"
    assert AuditEntry.objects.get().action == "erase_job_data"


def test_no_file_is_erased_from_a_host_that_may_not_have_the_webs_folder(
    queue: QueueHarness, terminal: Terminal, job: Job
) -> None:
    film = store_artifact(queue, job, b"film", "film.bin")
    end(job, "completed", result={"film": {"$artifact": film}})
    now = timezone.now()
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    run = terminal("job", "erase", job.id, "--yes")
    assert (run.status, "DISPATCHER_ARTIFACT_STORE" in run.said) == (2, True), run.said
    assert Artifact.objects.get().state == "stored"


@pytest.mark.parametrize("words", [("x", "--download", "y"), ("drop", "x"), ("logs", "x", "--download", "y")])
def test_wrong_words_are_refused(terminal: Terminal, job: Job, words: tuple[str, ...]) -> None:
    words = tuple(job.id if word == "x" else word for word in words)
    assert terminal("job", *words).status == 2
