"""Outputs that an HTTP GPU server uploads during its run. A real folder store behind its web server, a real
model server, real Valkey, sockets and database; only the API's view is called directly."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection

from artifacts.errors import ArtifactQuotaFull, ArtifactTooLarge, TooManyRunOutputs
from artifacts.models import Artifact, ArtifactUse, RunUpload
from artifacts.outputs import new_output
from artifacts.refs import ref
from artifacts.removal import forget_uploads
from artifacts.uploads import Wanted, promise
from foundation.ids import new_id
from foundation.secrets import verified
from gpus.errors import OutputNotStored
from jobs.domain.errors import AttemptOver, TooManyRunArtifacts
from jobs.domain.states import JobState
from jobs.execution import run_outputs
from jobs.execution.pushed_results import PUSH_TOKEN
from jobs.execution.run_outputs import may_name_uploads
from jobs.execution.run_uploads import PromisedOutput, WantedOutput, promise_output
from jobs.models import Attempt, Job
from jobs.ports import Ports
from tests.support.factories import make_job, make_model, make_running
from tests.support.servers.artifact_store import serving_store
from tests.support.servers.handlers import QuietHandler, serve_handler
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)
FILM = b"film" * 50_000
Work = Callable[["Upload"], Any]


class Upload:
    """What a server's code does with the run's headers."""

    def __init__(self, ports: Ports, headers: Any) -> None:
        self._ports, self._headers = ports, headers

    def promise(self, data: bytes, **values: Any) -> PromisedOutput:
        url = urlsplit(self._headers["X-Artifact-Url"])
        assert url.path.startswith("/api/v1/tasks/artifacts/")
        attempt = verified(self._headers["X-Callback-Token"], purpose=PUSH_TOKEN)
        assert attempt is not None
        wanted = WantedOutput(hashlib.sha256(data).hexdigest(), len(data), **values)
        promised = promise_output(url.path.rpartition("/")[2], attempt, wanted, self._ports)
        assert promised is not None
        return promised

    def put(self, promised: PromisedOutput, data: bytes) -> int:
        assert promised.upload is not None
        parts = urlsplit(promised.upload.url)
        store = http.client.HTTPConnection(parts.netloc, timeout=30)
        store.request("PUT", f"{parts.path}?{parts.query}", data, dict(promised.upload.headers))
        status = store.getresponse().status
        store.close()
        return status

    def send(self, data: bytes, **values: Any) -> PromisedOutput:
        promised = self.promise(data, **values)
        assert promised.upload is None or 200 <= self.put(promised, data) < 300
        return promised


class Server:
    """A model server whose code is `work`."""

    def __init__(self) -> None:
        self.url = ""
        self.work: Work = lambda upload: None
        self.ports: Ports | None = None
        self.errors: list[BaseException] = []


@contextmanager
def serving(server: Server) -> Iterator[None]:
    class Route(QuietHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            try:
                assert server.ports is not None
                answer = {"status": "success", "result": server.work(Upload(server.ports, self.headers))}
            except BaseException as error:
                server.errors.append(error)
                answer = {"status": "failed", "error": str(error)}
            finally:
                connection.close()
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serve_handler(Route) as url:
        server.url = f"{url}/run"
        yield


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    with serving(server):
        yield server


@pytest.fixture
def harness(valkey, fleet, server, settings, tmp_path) -> Iterator[WorkerHarness]:
    model = make_model("m", max_run_seconds=100.0, max_retries=1)
    harness = make_harness(valkey.url, fleet, model, server.url)
    server.ports = harness.ports
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    with serving_store(lambda: harness.ports.artifact_store) as url:
        settings.DISPATCHER = replace(
            settings.DISPATCHER, public_url=url, artifact_reserve_bytes=0, artifact_save_seconds=1.0
        )
        yield harness
        harness.close()


def run_once(harness: WorkerHarness, server: Server, work: Work, until: JobState = JobState.COMPLETED) -> Job:
    server.work = work
    job = harness.submit()
    harness.worker().work("m")
    wait_for(lambda: state(job) == until)
    job.refresh_from_db()
    return job


def test_uploads_that_the_result_names_become_artifacts(harness, server) -> None:
    def work(upload: Upload) -> Any:
        film = upload.send(FILM, name="фильм.mp4", content_type="video/mp4")
        image = upload.send(b"\x89PNG\r\n\x1a\n....")
        upload.send(b"a file that the result does not name")
        assert image.upload is not None
        return {
            "film": ref(film.artifact_id),
            "images": [image.upload.url, image.upload.url.partition("?")[0]],
        }

    job = run_once(harness, server, work)
    film = Artifact.objects.get(name="фильм.mp4")
    image = Artifact.objects.get(content_type="image/png")
    assert job.result == {"film": ref(film.pk), "images": [ref(image.pk)] * 2}
    assert Artifact.objects.count() == 2
    assert {use.artifact_id for use in ArtifactUse.objects.filter(job=job.pk)} == {film.pk, image.pk}
    assert (film.state, film.made_by_job, film.bytes) == ("stored", job.pk, len(FILM))
    assert b"".join(harness.ports.artifact_store.chunks(film.key)) == FILM


def test_the_same_promise_has_one_id_and_stored_bytes_are_not_sent_again(harness, server) -> None:
    def work(upload: Upload) -> Any:
        first = upload.send(FILM)
        again = upload.promise(FILM)
        assert again == PromisedOutput(first.artifact_id, None)
        return ref(first.artifact_id)

    job = run_once(harness, server, work)
    assert server.errors == []
    assert job.result == ref(Artifact.objects.get().pk)


def test_the_store_refuses_other_bytes_and_an_upload_that_is_missing_fails_the_run(harness, server) -> None:
    statuses = []

    def work(upload: Upload) -> Any:
        promised = upload.promise(FILM)
        statuses.append(upload.put(promised, b"FILM" * 50_000))
        return ref(promised.artifact_id)

    job = run_once(harness, server, work, JobState.RETRYING)
    assert statuses[0] >= 400
    assert job.error_code == OutputNotStored.code
    assert not Artifact.objects.exists()


def test_uploads_of_another_attempt_and_foreign_ids_are_not_referred_to(harness, server) -> None:
    other = RunUpload.objects.create(
        attempt=new_id(), artifact=new_id(), sha256="0" * 64, bytes=1, created_at=harness.ports.clock.now()
    )

    def work(upload: Upload) -> Any:
        mine = upload.send(FILM)
        return {
            "mine": ref(mine.artifact_id),
            "other": ref(other.artifact),
            "url": f"http://x/a/1/{'0' * 64}",
        }

    job = run_once(harness, server, work)
    assert list(ArtifactUse.objects.values_list("artifact_id", flat=True)) == [
        job.result["mine"]["$artifact"]
    ]
    assert job.result["url"].startswith("http://x")


def test_a_run_without_uploads_reads_none(harness, server, monkeypatch) -> None:
    monkeypatch.setattr(run_outputs, "with_uploads", None)
    job = run_once(harness, server, lambda upload: {"url": "https://cdn/a/picture.png", "n": [1, "/a/"]})
    assert job.result["n"] == [1, "/a/"]


def test_a_reference_deep_in_a_result_is_found() -> None:
    assert may_name_uploads([{"a": [{"b": ref(new_id())}]}])
    assert may_name_uploads({"a": f"https://s/store/a/7/{'0' * 64}?x=1"})
    assert not may_name_uploads({"a": ["$artifact", "/a/1/x"], "b": {"$artifact": 1}})


# -- promises ---------------------------------------------------------------------------------------


@pytest.fixture
def running(harness) -> tuple[Job, str]:
    now = harness.ports.clock.now()
    job = make_job("m", at=now)
    return job, make_running(job, slot="gpu-1/0", at=now)


def promised(harness: WorkerHarness, job: Job, attempt: str, data: bytes) -> PromisedOutput | None:
    return promise_output(
        job.pk, attempt, WantedOutput(hashlib.sha256(data).hexdigest(), len(data)), harness.ports
    )


def test_the_uploads_of_a_run_are_bounded(harness, running, settings) -> None:
    job, attempt = running
    settings.DISPATCHER = replace(
        settings.DISPATCHER, run_artifacts=2, run_artifact_bytes=100, max_artifact_bytes=90
    )
    with pytest.raises(ArtifactTooLarge, match="90 bytes"):
        promised(harness, job, attempt, b"x" * 91)
    promised(harness, job, attempt, b"a" * 60)
    with pytest.raises(TooManyRunArtifacts, match="they have 60, this one 41"):
        promised(harness, job, attempt, b"b" * 41)
    promised(harness, job, attempt, b"b" * 40)
    with pytest.raises(TooManyRunArtifacts, match="2 artifacts"):
        promised(harness, job, attempt, b"")
    assert promised(harness, job, attempt, b"a" * 60) is not None  # the same again


def test_the_quota_of_the_tenant_counts(harness, running, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_artifact_bytes=100)
    with pytest.raises(ArtifactQuotaFull):
        promised(harness, *running, b"x" * 101)


def test_uploads_of_parallel_attempts_count_together_until_they_are_artifacts_or_removed(
    harness, running, settings
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_artifact_bytes=100)
    now = harness.ports.clock.now()
    job, attempt = running
    other = make_job("m", at=now)
    its_attempt = make_running(other, slot="gpu-1/1", at=now)
    promised(harness, job, attempt, b"a" * 60)
    promised(harness, other, its_attempt, b"a" * 60)  # the same bytes take their room once
    with pytest.raises(ArtifactQuotaFull, match=r"have 100 bytes \(.*they have 60, and new ones 41"):
        promised(harness, other, its_attempt, b"b" * 41)
    assert RunUpload.objects.count() == 2, "what is refused takes no room"
    with pytest.raises(ArtifactQuotaFull):  # nor may a client promise it
        promise(Wanted(job.tenant_id, "c" * 64, 41), harness.ports.artifact_store, now)
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_run_outputs=1)
    with pytest.raises(TooManyRunOutputs, match=r"1 outputs .*DISPATCHER_TENANT_RUN_OUTPUTS"):
        promised(harness, other, its_attempt, b"b")
    RunUpload.objects.update(created_at=now - timedelta(hours=26))  # the sweep has removed their objects
    promised(harness, other, its_attempt, b"b" * 100)


def test_content_that_was_promised_with_fewer_bytes_takes_its_own_room(harness, running, settings) -> None:
    """At the promise its length is the sender's claim, and its hash gives no length."""
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_artifact_bytes=100)
    job, attempt = running
    now = harness.ports.clock.now()
    for digest in ("a" * 64, "b" * 64):
        promise(Wanted(job.tenant_id, digest, 1), harness.ports.artifact_store, now)
    new_output(job.tenant_id, attempt, "a" * 64, 90, now=now)  # 92 with the promises of the client
    with pytest.raises(ArtifactQuotaFull):
        new_output(job.tenant_id, attempt, "b" * 64, 90, now=now)
    promise_output(job.pk, attempt, WantedOutput("c" * 64, 1), harness.ports)
    with pytest.raises(ArtifactQuotaFull, match="new ones 9"):
        new_output(job.tenant_id, attempt, "c" * 64, 9, now=now)


def test_a_token_is_of_one_job_and_ends_with_its_attempt(harness, running) -> None:
    job, attempt = running
    assert promised(harness, make_job("m", at=harness.ports.clock.now()), attempt, b"x") is None
    Attempt.objects.filter(pk=attempt).update(state="completed", finished_at=harness.ports.clock.now())
    with pytest.raises(AttemptOver):
        promised(harness, job, attempt, b"x")


def test_old_promises_are_forgotten(harness, running) -> None:
    promised(harness, *running, b"x")
    now = harness.ports.clock.now()
    assert forget_uploads(now + timedelta(days=6), 10) == 0
    assert forget_uploads(now + timedelta(days=8), 10) == 1
