"""Jobs on an LLM server, through a worker: text in the job's events, tokens at its attempt, a cancel that
reaches the server. Real Valkey, sockets and database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Event, Job
from jobs.operations.jobs import cancel_job
from tests.support.factories import make_model
from tests.support.servers.llm_server import USAGE, WORDS, LlmServer
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)

CHAT = {"messages": [{"role": "user", "content": "Tell me"}], "stream": True}


@pytest.fixture
def llm() -> Iterator[LlmServer]:
    with LlmServer() as llm:
        yield llm


@pytest.fixture(params=["openai", "ollama"])
def harness(valkey, fleet, request, llm, settings) -> Iterator[WorkerHarness]:
    settings.DISPATCHER = replace(settings.DISPATCHER, news_seconds=0.0)
    model = make_model("m", model_type=request.param)
    harness = make_harness(valkey.url, fleet, model, llm.url)
    yield harness
    harness.close()


def text_of(job: Job) -> str:
    pieces = Event.objects.filter(job=job, type="partial").order_by("seq").values_list("data", flat=True)
    return "".join(piece for data in pieces for piece in data["output"])


def test_a_client_sees_the_text_grow_before_the_end(harness, llm):
    llm.does.hang_after = 3
    job = harness.submit(CHAT)
    thread = harness.work(harness.worker())
    wait_for(lambda: text_of(job) == "".join(WORDS[:3]))
    assert state(job) == JobState.RUNNING
    llm.go.set()
    wait_for(lambda: state(job) == JobState.COMPLETED)
    assert text_of(job) == "".join(WORDS)
    events = list(Event.objects.filter(job=job).order_by("seq"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [events[0].type, events[-1].type] == ["queued", "completed"]
    assert all(event.data["attempt"] == 1 for event in events if event.type == "partial")
    assert Attempt.objects.get(job=job).usage == USAGE
    job.refresh_from_db()
    assert "".join(WORDS) in str(job.result)
    thread.join(5)


def test_a_cancel_closes_the_connection_and_frees_the_slot_at_once(harness, llm):
    llm.does.hang_after = 2
    job = harness.submit(CHAT)
    worker = harness.worker()
    thread = harness.work(worker)
    wait_for(lambda: text_of(job) == "".join(WORDS[:2]))
    cancel_job(job.id, ports=harness.ports)
    worker.nudge([job.id])
    wait_for(lambda: state(job) == JobState.CANCELLED)
    assert llm.hung_up.wait(30)
    assert [what for _, what in llm.log] == ["hung up"]
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.slot_freed) == (AttemptState.CANCELLED, True)
    assert attempt.evidence == "its connection was closed"
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "free")
    thread.join(5)


def test_a_server_that_breaks_off_leaves_its_slot_free_and_the_job_tries_again(harness, llm):
    llm.does.cut_after = 2
    job = harness.submit(CHAT)
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    attempt = Attempt.objects.get(job=job)
    assert (attempt.error_code, attempt.slot_freed) == ("server_lost", True)
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "free")


def test_a_missing_model_says_so(harness, llm):
    llm.does.models = ("another",)
    job = harness.submit(CHAT)
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    assert Attempt.objects.get(job=job).error_code == "model_missing"
