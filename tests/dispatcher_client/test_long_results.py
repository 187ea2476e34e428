"""Results that are in an artifact, as both clients and the API show them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from artifacts.models import Artifact, ArtifactUse
from artifacts.outputs import Maker, SavedOutput, Secured, secure
from dispatcher_client import AnswerTooLarge, Client, Conflict, FileChanged, NotFound, Problem
from dispatcher_client import __main__ as command_line
from dispatcher_client.file_names import free_names
from foundation.ids import new_id
from jobs import ports, transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.models import Job
from tests.support.api_harness import Account, api
from tests.support.client_files import client, make_file, store
from tests.support.factories import make_job, make_running
from tests.support.fakes import START
from tests.support.live_web import redis_url, tenant, web
from tests.support.new_client import NewClient
from tests.support.servers.web import Web

__all__ = ["api", "client", "redis_url", "store", "tenant", "web"]
LONG = {"text": "x" * 5000, "list": [1, 2, 3]}


def ended_with(value: Any, tenant: Account) -> str:
    """A job whose result is in an artifact; its id."""
    job = make_job("zimg", tenant=tenant.tenant)
    attempt_id = make_running(job)
    text, of_process = json.dumps(value).encode(), ports.production_ports()
    made_store, now = of_process.artifact_store, of_process.clock.now()
    digest = hashlib.sha256(text).hexdigest()
    output = SavedOutput(new_id(), digest, len(text), "application/json", "result.json")
    made_store.write(Artifact(tenant_id=job.tenant_id, sha256=digest).key, len(text), [text])
    outputs = secure(job.tenant_id, [output], Maker(job.pk, attempt_id, 1), made_store, now)
    secured = Secured(outputs, job.tenant_id, now, outputs[0])
    end = transitions.End(
        job.pk,
        attempt_id,
        1,
        "gpu-1/0",
        Ending(),
        RetryPolicy(),
        START,
        result=outputs[0].ref,
        outputs=secured,
    )
    with transaction.atomic():
        assert transitions.end_attempt(end).won
    return job.pk


def test_both_clients_read_a_long_result(client: Client, tenant: Account) -> None:
    job = client.get(ended_with(LONG, tenant))
    assert job.result_is_artifact
    assert client.artifact(job.result).name == "result.json"
    assert job.data["result_url"] == f"/api/v1/artifacts/{job.result['$artifact']}"
    assert client.result(job) == LONG


def test_a_result_that_is_only_a_reference_is_not_read(client: Client, tenant: Account) -> None:
    """Its run saved a file, and its result is the reference to it."""
    job_id = ended_with(LONG, tenant)
    ArtifactUse.objects.update(is_result=False)
    job = client.get(job_id)
    assert not job.result_is_artifact
    assert client.result(job) == job.result


def test_a_job_that_names_another_jobs_artifact_as_its_result_shows_no_url(
    client: Client, tenant: Account
) -> None:
    first = Job.objects.get(pk=ended_with(LONG, tenant))
    other = make_job("zimg", tenant=tenant.tenant)
    Job.objects.filter(pk=other.pk).update(result=first.result)
    assert client.get(other.pk).data["result_url"] is None


def test_a_long_result_is_bounded_and_checked(
    web: Web, tenant: Account, client: Client, new_client: NewClient
) -> None:
    job = client.get(ended_with(LONG, tenant))
    small = new_client(web.url, tenant.key, retry_seconds=1, max_answer_bytes=4000)
    with pytest.raises(AnswerTooLarge):
        small.result(job)
    row, made_store = Artifact.objects.get(), ports.production_ports().artifact_store
    path = next((made_store.root / "a").rglob(row.sha256))
    path.write_bytes(path.read_bytes().replace(b"x", b"y"))
    with pytest.raises(FileChanged):
        client.result(job)
    Artifact.objects.update(tenant_id=tenant.tenant.pk + 1)
    with pytest.raises(NotFound):
        client.result(job)


def test_the_command_line_prints_results_saves_files_and_erases(
    *,
    client: Client,
    tenant: Account,
    web: Web,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DISPATCHER_URL", web.url)
    monkeypatch.setenv("DISPATCHER_API_KEY", tenant.key)

    def call(*words: str) -> tuple[int, Any]:
        status = command_line.main(words)
        said = capsys.readouterr()
        return status, json.loads(said.out or said.err)

    waiting = make_job("zimg", tenant=tenant.tenant)
    assert call("result", waiting.pk)[0] == command_line.NOT_OVER
    job_id = ended_with(LONG, tenant)
    assert call("result", job_id) == (0, LONG)
    made = client.upload(make_file(tmp_path, 100))
    Job.objects.filter(pk=job_id).update(result={"film": [made.ref, made.ref]})
    ArtifactUse.objects.filter(job=job_id).delete()
    ArtifactUse.objects.create(artifact_id=made.id, job=job_id)
    status, saved = call("result", job_id, "--download", str(tmp_path / "out"))
    assert (status, saved["result"]) == (0, {"film": [made.ref, made.ref]})
    [path] = (tmp_path / "out").iterdir()
    assert saved["files"] == {made.id: str(path)}
    assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    status, erased = call("erase", job_id)
    assert (status, erased["artifacts"]) == (0, 1)
    assert "$erased" in client.get(job_id).result
    with pytest.raises(Problem) as gone:
        client.artifact(made.ref)
    assert gone.value.code == "artifact_gone"
    with pytest.raises(Conflict):
        client.erase(waiting.pk)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a.png", "a.png"),
        ("../a.png", "a.png"),
        ("c:\\x\\a.png", "a.png"),
        ("..", "ID"),
        ("", "ID"),
        (".", "ID"),
        ("a\x1b[2J\n.png", "a[2J.png"),
        ("字" * 200 + ".png", "字" * 65 + ".png"),
        ("x" * 255, "x" * 200),
        (f"a.{'x' * 250}", f"a.{'x' * 198}"),
    ],
)
def test_a_file_never_leaves_its_folder(name: str, file: str) -> None:
    assert free_names(name, "ID", ()) == ([file] if file == "ID" else [file, f"ID-{file}"])
    assert len(free_names(name, "J" * 26, {file})[-1].encode()) <= 255


@pytest.mark.parametrize("taken", ["A.png", "a.PNG", "A\N{COMBINING RING ABOVE}.png", "Å.PNG"])
def test_names_that_are_equal_on_some_file_systems_are_kept_apart(taken: str) -> None:
    name = "å.png" if taken[0] in "Å" or len(taken) > 5 else "a.png"
    assert free_names(name, "ID", ["b.png"]) == [name, f"ID-{name}"]
    assert free_names(name, "ID", [taken]) == [f"ID-{name}"]
