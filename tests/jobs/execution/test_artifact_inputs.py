"""Artifacts as inputs of GPU servers: signed URLs in place of references, for one run. A real store behind
its web server, a real model server that reads its inputs, real Valkey, sockets and database."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from structlog.testing import capture_logs

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import ref
from artifacts.store.contract import StoreUnavailable
from foundation.ids import new_id
from gpus.errors import BadInput
from gpus.models import ModelConfig
from jobs.domain.states import AttemptState, JobState
from jobs.execution import artifact_inputs
from jobs.models import Attempt, Event, Job
from tests.support.factories import make_model, make_tenant
from tests.support.servers.artifact_store import serving_store
from tests.support.servers.handlers import QuietHandler, serve_handler
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class ReadingServer:
    """A model server that reads the URL `image` of its payload, and answers the hash of what it got. result:
    of a payload, in place of that."""

    url: str = ""
    payloads: list[Any] = field(default_factory=list)
    result: Callable[[Any], Any] | None = None


@contextmanager
def reading_server() -> Iterator[ReadingServer]:
    seen = ReadingServer()

    class Route(QuietHandler):
        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.payloads.append(payload)
            digest = None
            if "image" in payload:
                with urllib.request.urlopen(payload["image"], timeout=30) as answer:
                    digest = hashlib.sha256(answer.read()).hexdigest()
            result = {"sha256": digest} if seen.result is None else seen.result(payload)
            body = json.dumps({"status": "success", "result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serve_handler(Route) as url:
        seen.url = f"{url}/run"
        yield seen


@pytest.fixture
def server() -> Iterator[ReadingServer]:
    with reading_server() as server:
        yield server


@pytest.fixture
def harness(valkey, fleet, server, settings, tmp_path) -> Iterator[WorkerHarness]:
    model = make_model("m", max_run_seconds=100.0, max_retries=2)
    harness = make_harness(valkey.url, fleet, model, server.url)
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    with serving_store(lambda: harness.ports.artifact_store) as url:
        settings.DISPATCHER = replace(settings.DISPATCHER, public_url=url, artifact_reserve_bytes=0)
        yield harness
        harness.close()


def stored(harness: WorkerHarness, data: bytes) -> Artifact:
    now = harness.ports.clock.now()
    row = Artifact.objects.create(
        id=new_id(now.timestamp()),
        tenant_id=make_tenant().pk,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        state="stored",
        created_at=now,
        expires_at=now + timedelta(days=1),
    )
    harness.ports.artifact_store.write(row.key, len(data), [data])
    return row


def submit(harness: WorkerHarness, row: Artifact, payload: dict[str, Any]) -> Job:
    """As the API stores it: the use is there before a worker may claim the job."""
    job_id = new_id(harness.ports.clock.now().timestamp())
    ArtifactUse.objects.create(artifact=row, job=job_id, run="")
    return harness.submit(payload, job_id=job_id)


def test_a_model_server_gets_a_url_that_is_neither_stored_nor_logged(harness, server) -> None:
    data = os.urandom(300_000)
    row = stored(harness, data)
    payload = {"image": ref(row.pk), "more": [{"mask": ref(row.pk)}], "prompt": "x"}
    began = datetime.now(UTC)
    job = submit(harness, row, payload)
    with capture_logs() as lines:
        harness.worker().work("m")
        wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    assert job.result == {"sha256": row.sha256}
    assert job.payload == payload
    (sent,) = server.payloads
    assert sent["more"][0]["mask"] == sent["image"]
    assert sent["prompt"] == "x"
    parts = urlsplit(sent["image"])
    query = parse_qs(parts.query)
    lives = int(query["expires"][0]) - began.timestamp()
    assert 155 <= lives <= 200  # the run limit and a minute
    secret = query["signature"][0]
    events = list(Event.objects.filter(job=job).values_list("data", flat=True))
    attempts = list(Attempt.objects.filter(job=job).values())
    for kept in (lines, events, attempts, list(Job.objects.values())):
        assert secret not in str(kept)


def test_a_job_without_references_asks_no_store(harness, server, monkeypatch) -> None:
    monkeypatch.setattr(artifact_inputs, "input_urls", None)
    job = harness.submit({"prompt": "x"})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    assert server.payloads == [{"prompt": "x"}]


@pytest.mark.parametrize("gone", ["object", "row"])
def test_a_job_whose_artifact_is_gone_fails_at_once_and_is_not_sent(harness, server, gone) -> None:
    row, _ = stored(harness, b"picture"), stored(harness, b"another one")
    if gone == "object":
        harness.ports.artifact_store.remove(row.key)
    else:
        Artifact.objects.filter(pk=row.pk).update(state="gone")
    job = submit(harness, row, {"image": ref(row.pk)})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.FAILED)
    job.refresh_from_db()
    assert (job.error_code, job.attempts_made) == (BadInput.code, 1)
    message = f"The artifact {row.pk} of the payload does not exist any more. Upload it again."
    assert job.error_message == message
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.slot_freed, attempt.gpu_seconds) == (AttemptState.FAILED, True, 0.0)
    assert server.payloads == []


def test_a_job_waits_while_the_store_does_not_answer(harness, server, monkeypatch) -> None:
    row = stored(harness, b"picture")
    store = harness.ports.artifact_store
    real = store.find
    asked = []

    def find(key):
        asked.append(key)
        if len(asked) == 1:
            raise StoreUnavailable("The store does not answer.")
        return real(key)

    monkeypatch.setattr(store, "find", find)
    job = submit(harness, row, {"image": ref(row.pk)})
    worker = harness.worker()
    worker.work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    job.refresh_from_db()
    assert (job.tries, job.error_code) == (0, "connect")
    assert "The store does not answer." in job.error_message
    assert server.payloads == []


@pytest.mark.parametrize("left", ["an empty folder", "no folder"])
def test_a_job_waits_while_the_folder_of_the_store_is_not_mounted(harness, server, left) -> None:
    row = stored(harness, b"picture")
    root = harness.ports.artifact_store.root
    mounted = root.rename(root.with_name("unmounted"))
    if left == "an empty folder":
        root.mkdir()
    job = submit(harness, row, {"image": ref(row.pk)})
    worker = harness.worker()
    worker.work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    job.refresh_from_db()
    assert (job.tries, job.error_code) == (0, "connect")
    assert "is its disk mounted" in job.error_message
    if root.exists():
        root.rmdir()
    mounted.rename(root)
    assert server.payloads == []


def test_an_artifact_that_the_job_does_not_use_gets_no_url(harness, server) -> None:
    """Its payload was not checked against it."""
    row, other = stored(harness, b"mine"), stored(harness, b"another's")
    job = submit(harness, row, {"image": ref(other.pk)})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.FAILED)
    assert server.payloads == []


OTHERS = "https://films.s3.amazonaws.com/a/7/" + "0" * 64 + "?X-Amz-Signature=theirs"


def echo(payload: Any) -> Any:
    url = payload["image"]
    return {
        "image": url,
        "films": [url, {"film": url}],
        "text": f"read {url}, and wrote the film",
        "encoded": f"http://box/fetch?url={quote(url, safe='')}",
        "html": f'<img src="{url.replace("&", "&amp;")}">',
        url: 1,
        "other": OTHERS,
        "plain": url.partition("?")[0],
    }


@pytest.mark.parametrize("inline_bytes", [256 * 1024, 200])
def test_a_result_that_echoes_the_url_of_an_input_is_stored_without_it(
    harness, server, settings, inline_bytes
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, inline_result_bytes=inline_bytes)
    row = stored(harness, b"picture")
    server.result = echo
    job = submit(harness, row, {"image": ref(row.pk)})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    result = job.result
    if inline_bytes == 200:
        of_result = Artifact.objects.get(pk=result["$artifact"])
        result = json.loads(b"".join(harness.ports.artifact_store.chunks(of_result.key)))
    [payload] = server.payloads
    signature = payload["image"].rpartition("signature=")[2]
    assert len(signature) == 40
    assert signature not in json.dumps(result)
    assert result["image"] == ref(row.pk)
    assert result["films"] == [ref(row.pk), {"film": ref(row.pk)}]
    assert result["other"] == OTHERS, "another store's"
    assert result["plain"] == payload["image"].partition("?")[0]
    assert len(result) == len(echo(payload))
    assert urlsplit(payload["image"]).path in result["text"]


def test_a_file_of_a_result_may_be_an_input(harness, server) -> None:
    """Its URL is of a store that no worker reads URLs of."""
    row = stored(harness, b"picture")
    ModelConfig.objects.filter(name="m").update(output_files=["image"])
    server.result = lambda payload: {"image": payload["image"]}
    job = submit(harness, row, {"image": ref(row.pk)})
    harness.worker().work("m")
    wait_for(lambda: state(job) in (JobState.COMPLETED, JobState.FAILED))
    job.refresh_from_db()
    assert (job.error_message, job.result) == ("", {"image": ref(row.pk)})
