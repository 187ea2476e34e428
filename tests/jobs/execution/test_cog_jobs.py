"""Jobs on a stock Cog container: its webhook ends them, also under another worker; no job runs twice."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace

import pytest

from artifacts.models import Artifact
from artifacts.refs import ref
from gpus.models import ModelConfig
from jobs.domain.states import AttemptState, JobState
from jobs.events.log_lines import LogChoice, read_lines
from jobs.models import Attempt, Job
from jobs.operations.jobs import cancel_job
from tests.support.cog_receiver import push_route
from tests.support.factories import make_model
from tests.support.servers.cog_server import CogServer
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cog() -> Iterator[CogServer]:
    with CogServer() as cog:
        yield cog


@pytest.fixture
def harness(valkey, fleet, cog, settings) -> Iterator[WorkerHarness]:
    model = make_model("m", model_type="cog", poll_interval=0.05)
    harness = make_harness(valkey.url, fleet, model, cog.url)
    with push_route(harness) as url:
        settings.DISPATCHER = replace(settings.DISPATCHER, public_url=url)
        yield harness
        harness.close()


def test_the_webhook_ends_the_job(harness, cog):
    job = harness.submit({"prompt": "x"})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    attempt = Attempt.objects.get(job=job)
    assert (attempt.remote_id, attempt.usage) == (attempt.id, {"predict_time": 0.5})
    assert Job.objects.get(id=job.id).result == {"output": "picture", "logs": "loading\n"}
    assert cog.runs == {attempt.id: 1}


def test_files_in_the_output_become_artifacts(harness, cog, settings, tmp_path):
    """Cog sends them as data: URIs, unless it has an upload URL."""
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
    ModelConfig.objects.update(output_files=["output[*]"])
    picture = b"\x89PNG\r\n\x1a\n" + bytes(50_000)
    cog.outcome |= {"output": [f"data:image/png;base64,{base64.b64encode(picture).decode()}"]}
    job = harness.submit({"prompt": "x"})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    row = Artifact.objects.get()
    assert Job.objects.get(id=job.id).result == {"output": [ref(row.pk)], "logs": "loading\n"}
    assert (row.content_type, row.name) == ("image/png", "output-0.png")
    assert b"".join(harness.ports.artifact_store.chunks(row.key)) == picture


def test_another_worker_goes_on_with_the_same_prediction(harness, cog):
    cog.hold = True
    job = harness.submit({"prompt": "x"})
    first = harness.worker()
    thread = harness.work(first)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    first.drain()
    thread.join(5)
    second = harness.work(harness.worker())
    wait_for(lambda: Attempt.objects.get(job=job).epoch == 2)
    cog.gate.set()
    wait_for(lambda: state(job) == JobState.COMPLETED)
    assert cog.runs == {Attempt.objects.get(job=job).id: 1}
    second.join(5)


def test_a_cancel_stops_the_prediction(harness, cog):
    cog.hold = True
    job = harness.submit({"prompt": "x"})
    worker = harness.worker()
    thread = harness.work(worker)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    cancel_job(job.id, ports=harness.ports)
    worker.nudge([job.id])
    wait_for(lambda: state(job) == JobState.CANCELLED)
    wait_for(lambda: [end["status"] for end in cog.pushed] == ["canceled"])
    thread.join(5)


def test_the_logs_of_a_prediction_are_lines_of_the_job(harness, cog):
    cog.outcome |= {"logs": "loading\n 10%\r100%\nnul \0 and \x1b[31mred\x1b[0m\nlast"}
    job = harness.submit({"prompt": "x"})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    lines = [line.text for line in read_lines(job.id, LogChoice())]
    assert lines == ["loading", "100%", r"nul \x00 and red", "last"]
