"""Files that a Cog container uploads (`--upload-url`): they become artifacts with the end of their run."""

from __future__ import annotations

import http.client
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.core.management import call_command

from artifacts.models import Artifact, RunUpload
from artifacts.refs import ref
from dispatcher_project.web import cog_uploads as cog_web
from dispatcher_project.web.cog_uploads import CogUploads
from foundation.ids import new_id
from gpus.models import AuditEntry, Pool, Server
from gpus.registry.upload_url import COG_UPLOADS, upload_url
from jobs.domain.states import AttemptState, JobState
from jobs.execution import cog_uploads
from jobs.models import Attempt, Job
from tests.support.cog_receiver import push_route
from tests.support.factories import make_model
from tests.support.servers.artifact_store import http_only, serving
from tests.support.servers.cog_server import CogServer
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(3_000_000)


@pytest.fixture
def cog() -> Iterator[CogServer]:
    with CogServer() as cog:
        yield cog


@pytest.fixture
def harness(
    valkey: Any, fleet: str, cog: CogServer, settings: Any, tmp_path: Path
) -> Iterator[WorkerHarness]:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    harness = make_harness(valkey.url, fleet, make_model("m", model_type="cog", poll_interval=0.05), cog.url)
    with serving(http_only(CogUploads(lambda: harness.ports))) as uploads, push_route(harness) as url:
        knobs = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
        settings.DISPATCHER = replace(knobs, public_url=uploads)
        cog.upload_url = upload_url(Server.objects.get(name="gpu-1"))
        settings.DISPATCHER = replace(knobs, public_url=url)
        yield harness
        harness.close()


@pytest.fixture
def running(harness: WorkerHarness, cog: CogServer) -> Iterator[Attempt]:
    """An attempt whose prediction waits."""
    cog.hold = True
    job = harness.submit({"prompt": "x"})
    harness.work(harness.worker())
    wait_for(lambda: Attempt.objects.filter(job_id=job.id, state=AttemptState.WAITING).exists())
    yield Attempt.objects.get(job_id=job.id)
    cog.webhooks = False


def put(
    address: str, headers: dict[str, str], body: bytes = b"film", method: str = "PUT"
) -> tuple[int, bytes]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        connection.request(method, parts.path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def of(attempt: Attempt) -> dict[str, str]:
    return {"X-Prediction-ID": attempt.pk, "Content-Type": "video/mp4"}


def _head(address: str, attempt: Attempt, length: int) -> bytes:
    lines = (
        f"PUT {urlsplit(address).path}/film HTTP/1.1",
        "Host: x",
        f"Content-Length: {length}",
        f"X-Prediction-ID: {attempt.pk}",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def test_uploaded_files_are_in_the_result(harness: WorkerHarness, cog: CogServer) -> None:
    cog.files = {"out put.png": PICTURE, "../second.png": b"\x89PNG\r\n\x1a\n2"}
    job = harness.submit({"prompt": "x"})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    first, second = Artifact.objects.order_by("-bytes")
    assert Job.objects.get(id=job.id).result["output"] == [ref(first.pk), ref(second.pk)]
    assert [(one.name, one.content_type) for one in (first, second)] == [
        ("out put.png", "image/png"),
        ("second.png", "image/png"),
    ]
    assert b"".join(harness.ports.artifact_store.chunks(first.key)) == PICTURE


def test_a_refused_upload_fails_the_run(harness: WorkerHarness, cog: CogServer, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, max_artifact_bytes=1000)
    cog.files = {"out.png": PICTURE}
    job = harness.submit({"prompt": "x"}, max_retries=0)
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.FAILED)
    assert "status 413" in Job.objects.get(id=job.id).error_message
    assert not Artifact.objects.exists()


def test_only_a_running_prediction_of_this_server_may_upload(
    cog: CogServer, running: Attempt, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher_project.web.cog_uploads.ROW_SECONDS", 0.0)
    base = cog.upload_url
    root = base.partition(COG_UPLOADS)[0]
    settings.DISPATCHER = replace(settings.DISPATCHER, public_url=root)
    other = upload_url(Server.objects.create(name="gpu-2", pool=Pool.objects.get()))
    removed = upload_url(Server(name="gpu-3"))
    for address, headers, status in (
        (f"{base}x/film", of(running), 401),
        (f"{root}{COG_UPLOADS}gpu-1/film", of(running), 401),
        (f"{root}{COG_UPLOADS}{quote('gpu-1.' + chr(233))}/film", of(running), 401),
        (f"{other}/film", of(running), 404),
        (f"{removed}/film", of(running), 401),
        (f"{base}/film", {"X-Prediction-ID": new_id()}, 404),
        (f"{base}/film", {"X-Prediction-ID": "x"}, 400),
        (f"{base}/film", {}, 400),
        (f"{base}/film", {**of(running), "Transfer-Encoding": "chunked"}, 411),
    ):
        body = b"4\r\nfilm\r\n0\r\n\r\n" if status == 411 else b"film"
        assert put(address, headers, body)[0] == status, (address, headers)
    assert put(f"{base}/film", of(running), method="POST")[0] == 405
    assert not RunUpload.objects.exists()
    Attempt.objects.update(finished_at=running.started_at)
    with socket.create_connection((urlsplit(base).hostname or "", urlsplit(base).port or 0)) as connection:
        connection.settimeout(30)
        connection.sendall(_head(base, running, 1_000_000))
        answer = connection.recv(65536)
    assert b" 409 " in answer.split(b"\r\n")[0], "before it sends its bytes"


@pytest.mark.database
def test_a_key_that_was_renewed_is_refused_at_once(cog: CogServer, running: Attempt) -> None:
    assert put(f"{cog.upload_url}/film", of(running))[0] == 201
    call_command("upload_url", "gpu-1", renew=True, yes=True, json=False)
    assert put(f"{cog.upload_url}/film", of(running))[0] == 401
    renewed = upload_url(Server.objects.get(name="gpu-1")).rpartition("/")[2]
    assert put(f"{cog.upload_url.rpartition('/')[0]}/{renewed}/film", of(running))[0] == 201
    assert AuditEntry.objects.get().action == "renew_upload_url"


def test_names_are_labels(cog: CogServer, running: Attempt) -> None:
    for number, name in enumerate(("../../etc/passwd", "a\0b", "n" * 4000, "☃.mp4", "")):
        body = b"film %d" % number
        assert put(f"{cog.upload_url}/{quote(name, safe='')}", of(running), body)[0] == 201, name
    names = RunUpload.objects.order_by("id").values_list("name", flat=True)
    assert list(names) == ["passwd", "ab", "n" * 255, "☃.mp4", ""]


def test_an_upload_that_is_cut_off_leaves_nothing(
    harness: WorkerHarness, cog: CogServer, running: Attempt
) -> None:
    parts = urlsplit(cog.upload_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(_head(cog.upload_url, running, 1000) + b"half")
    assert put(f"{cog.upload_url}/film", of(running))[0] == 201, "the next one is taken"
    assert RunUpload.objects.get().bytes == 4
    assert len(list(harness.ports.artifact_store.objects())) == 1


def test_the_files_of_a_run_are_bounded(cog: CogServer, running: Attempt, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, run_artifacts=1)
    assert put(f"{cog.upload_url}/a", of(running), b"a")[0] == 201
    assert put(f"{cog.upload_url}/a", of(running), b"a")[0] == 201, "the same one again"
    status, answer = put(f"{cog.upload_url}/b", of(running), b"b")
    assert (status, b"DISPATCHER_RUN_ARTIFACTS" in answer) == (429, True)


def after_call(monkeypatch: pytest.MonkeyPatch, name: str) -> Event:
    """An event that is set once this function of the web has returned."""
    called, real = Event(), getattr(cog_web, name)

    def call(*args: Any, **more: Any) -> None:
        real(*args, **more)
        called.set()

    monkeypatch.setattr(cog_web, name, call)
    return called


def answer_to_head(address: str, attempt: Attempt, length: int) -> bytes:
    """The answer to an upload of which no byte is sent."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.settimeout(30)
        connection.sendall(_head(address, attempt, length))
        answer = b""
        while not answer.endswith(b"}") and (more := connection.recv(65536)):
            answer += more
        return answer


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"run_artifact_bytes": 1_000_003}, b"too_many_run_artifacts"),
        ({"run_artifacts": 1}, b"too_many_run_artifacts"),
        ({"tenant_artifact_bytes": 1_000_003}, b"artifact_quota_full"),
        ({"tenant_run_outputs": 1}, b"too_many_run_outputs"),
    ],
)
def test_a_file_over_a_limit_is_refused_before_its_bytes(
    cog: CogServer, running: Attempt, settings: Any, limits: dict[str, int], code: bytes
) -> None:
    assert put(f"{cog.upload_url}/a", of(running))[0] == 201
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)
    answer = answer_to_head(cog.upload_url, running, 1_000_000)
    assert (b" 429 " in answer.split(b"\r\n")[0], code in answer) == (True, True), answer
    assert put(f"{cog.upload_url}/a", of(running))[0] == 201, "the same one again takes no room"


def test_files_that_are_arriving_count_for_the_limits_of_their_attempt(
    cog: CogServer, running: Attempt, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, run_artifact_bytes=1_500_000)
    arrived = after_call(monkeypatch, "_add")
    parts = urlsplit(cog.upload_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(_head(cog.upload_url, running, 1_400_000) + bytes(1_100_000))
        assert arrived.wait(30)
        assert b"too_many_run_artifacts" in answer_to_head(cog.upload_url, running, 200_000)
        connection.settimeout(30)
        connection.sendall(bytes(300_000))
        assert b" 201 " in connection.recv(65536).split(b"\r\n")[0]
    assert put(f"{cog.upload_url}/b", of(running), bytes(100_000))[0] == 201


def test_files_never_fill_the_temporary_folder(
    cog: CogServer, running: Attempt, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    answer = answer_to_head(cog.upload_url, running, 500_001)
    assert (b" 507 " in answer.split(b"\r\n")[0], b"no_room_for_body" in answer) == (True, True), answer
    assert b"500000 bytes together, 0.5 of what is free (DISPATCHER_COG_UPLOAD_SHARE)" in answer, answer
    assert b"they have 0, this one 500001" in answer, answer
    arrived = after_call(monkeypatch, "admit_upload")
    parts = urlsplit(cog.upload_url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(_head(cog.upload_url, running, 400_000))
        assert arrived.wait(30)
        assert b" 507 " in answer_to_head(cog.upload_url, running, 200_000).split(b"\r\n")[0]
        assert put(f"{cog.upload_url}/small", of(running), bytes(100_000))[0] == 201
    assert put(f"{cog.upload_url}/a", of(running), bytes(500_000))[0] == 201, "the other one was cut off"
    settings.DISPATCHER = replace(settings.DISPATCHER, cog_upload_share=0.7)
    assert put(f"{cog.upload_url}/b", of(running), bytes(700_000))[0] == 201
    assert b"700000 bytes together, 0.7" in answer_to_head(cog.upload_url, running, 700_001)


@pytest.mark.database
def test_a_prediction_may_end_before_its_start_is_committed(
    harness: WorkerHarness, cog: CogServer, running: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([None, None])
    real = cog_uploads._attempt.first
    monkeypatch.setattr(cog_uploads._attempt, "first", lambda **ids: next(seen, real(**ids)))
    assert put(f"{cog.upload_url}/film", of(running))[0] == 201
