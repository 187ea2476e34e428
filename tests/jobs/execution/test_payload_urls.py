"""https URLs in payloads that no web process has read, such as those of workflows' steps: read before the run
is sent. A real model server, store, Valkey and database; the files come from no server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from artifacts.models import Artifact, ArtifactUse
from foundation.fetch import Fetched, NotFetched
from gpus.errors import BadInput
from jobs.callbacks.guard import read_url
from jobs.domain.states import JobState
from jobs.models import Attempt, Job
from jobs.operations.jobs import cancel_job
from tests.support.answer_files import PNG, answer, configure, harness, limited, server
from tests.support.servers.answering import Answering
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

__all__ = ["harness", "server"]

pytestmark = [pytest.mark.django_db(transaction=True)]
URL = "https://93.184.216.34/cat.png"
PLACE = {"type": "string", "format": "uri", "contentMediaType": "image/png"}
Fetch = Callable[..., Any]


@pytest.fixture(autouse=True)
def marked(harness: WorkerHarness, server: Answering, settings: Any) -> None:
    configure(payload_schema={"properties": {"image": PLACE, "link": {"format": "uri"}}})
    limited(settings, fetched_urls=2)
    answer(server, {"ok": True})


def run(harness: WorkerHarness, payload: dict[str, Any], until: JobState) -> Job:
    job = harness.submit(payload)
    harness.work(harness.worker())
    wait_for(lambda: state(job) == until)
    job.refresh_from_db()
    return job


def answering(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Any]) -> list[str]:
    """Let each read of a foreign URL answer this; return the URLs that are read."""
    asked: list[str] = []

    async def fetch(url: str, add: Callable[[bytes], Any], *, limits: Any, allowed: Any) -> Fetched:
        assert await allowed(read_url(url)), "the guard lets it through"
        asked.append(url)
        add(answer())
        return Fetched(len(PNG), "image/png")

    monkeypatch.setattr("jobs.submission.fetched_urls.fetch", fetch)
    return asked


@pytest.mark.database
def test_the_file_is_read_once_for_all_tries_and_its_server_gets_a_url_of_ours(
    harness: WorkerHarness, server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, sent = answering(monkeypatch, lambda: PNG), []

    def post(payload: Any) -> bytes:
        sent.append(payload)
        return json.dumps({"status": "success", "result": 1}).encode()

    server.post = post
    job = run(harness, {"image": URL, "link": URL}, JobState.COMPLETED)
    row = Artifact.objects.get()
    assert job.payload == {"image": {"$artifact": row.pk}, "link": URL}
    assert ArtifactUse.objects.get().job == job.pk
    assert b"".join(harness.ports.artifact_store.chunks(row.key)) == PNG
    (got,) = sent
    assert str(row.key) in got["image"]
    assert got["link"] == URL
    assert asked == [URL]


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("https://10.0.0.7/x", "must not read (DISPATCHER_FETCHED_URL_NETWORKS"),
        ("https://93.184.216.34:25/x", "names port 25"),
        (URL, "answers 404"),
    ],
)
def test_a_file_that_may_not_be_read_fails_the_job_before_its_server_is_asked(
    harness: WorkerHarness, server: Answering, monkeypatch: pytest.MonkeyPatch, image: str, says: str
) -> None:
    def missing() -> bytes:
        raise NotFetched("answers 404", 404)

    if image == URL:
        answering(monkeypatch, missing)
    job = run(harness, {"image": image}, JobState.FAILED)
    assert job.error_code == BadInput.code
    assert says in job.error_message
    assert "/payload/image" in job.error_message
    assert not [request for request, _ in server.seen if request.startswith("POST")]


@pytest.mark.database
def test_a_cancel_ends_the_read(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = threading.Event()

    async def hangs(*_: Any, **__: Any) -> Fetched:
        reading.set()
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr("jobs.submission.fetched_urls.fetch", hangs)
    job = harness.submit({"image": URL})
    harness.work(harness.worker())
    assert reading.wait(30)
    cancel_job(job.pk, ports=harness.ports)
    wait_for(lambda: state(job) == JobState.CANCELLED, seconds=25)
    assert Attempt.objects.filter(slot_freed=False).count() == 0
