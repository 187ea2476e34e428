"""A model whose runner is not installed any more: its jobs wait, and no run or server breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gpus.health.health import health_url, health_urls, probe
from gpus.models import ModelConfig, Server
from gpus.registry.queries import rows_changed
from jobs.domain.states import AttemptState, JobState
from jobs.execution.orphaned_runs import why_unreachable
from jobs.models import Attempt
from tests.jobs.execution.by_hand import by_hand
from tests.jobs.execution.prefetch_by_hand import run_first, tries, with_followers
from tests.support.factories import make_model, make_server
from tests.support.servers.cog_server import CogServer
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cog() -> Iterator[CogServer]:
    with CogServer() as cog:
        yield cog


@pytest.fixture
def harness(valkey, fleet, cog) -> Iterator[WorkerHarness]:
    harness = make_harness(valkey.url, fleet, make_model("m", model_type="cog", poll_interval=0.05), cog.url)
    yield harness
    harness.close()


def remove_the_runner() -> None:
    ModelConfig.objects.update(model_type="gone")
    rows_changed.send(None)


def test_a_claimed_job_without_its_runner_is_queued_again_at_no_cost(harness, cog):
    job = harness.submit({"prompt": "x"})
    remove_the_runner()
    with capture_logs() as logs:
        harness.worker().work("m")
    assert [(log["model"], log["model_type"]) for log in logs if log["event"] == "runner_not_installed"] == [
        ("m", "gone")
    ]
    assert not [log for log in logs if log["event"] == "claim_crashed"]
    job.refresh_from_db()
    assert (job.state, job.attempts_made) == (JobState.QUEUED, 0)
    assert not cog.runs


def test_an_orphaned_run_is_adopted_once_the_runner_is_back(harness, cog):
    cog.hold, cog.webhooks = True, False
    job = harness.submit({"prompt": "x"})
    first = harness.worker()
    thread = harness.work(first)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    first.drain()
    thread.join(5)
    remove_the_runner()
    harness.worker().work("m")
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.epoch) == (AttemptState.WAITING, 1), "it was not ended"
    assert why_unreachable(attempt.server, "m") == "no runner 'gone' is installed"


@pytest.mark.django_db
def test_a_server_is_probed_by_its_models_that_have_a_runner(cog):
    model = make_model("a", pool="p", model_type="gone")
    server = make_server("gpu-1", model=model, endpoint="http://127.0.0.1:9/x")
    alone = Server.objects.prefetch_related("placements__model").get(pk=server.pk)
    assert "No runner 'gone'" in probe(alone).error
    assert health_urls(alone) == {}
    assert health_url(alone) == "http://127.0.0.1:9/x"
    server.placements.create(model=make_model("b", pool="p", model_type="cog"), endpoint=cog.url)
    both = Server.objects.prefetch_related("placements__model").get(pk=server.pk)
    assert probe(both, model="a").ok
    assert list(health_urls(both)) == ["b"]


def test_a_host_without_the_runner_leaves_the_job_to_a_host_that_has_it(harness):
    hands = by_hand(harness)
    job = hands.submit()
    hands.process.may_run = lambda spec: False
    assert hands.worker.work("m") == []
    assert (state(job), tries(job), hands.waiting()) == ("queued", 0, 1)
    hands.process.may_run = lambda spec: True
    wait_for(lambda: hands.worker.work("m"))  # its server rests for two seconds
    assert hands.gpu.sent == [job.id]
    assert state(job) == "completed"


def test_a_runner_that_is_missing_for_the_next_job_ends_no_run(harness):
    """A slot's models may have different runners; its prefetched job goes back into the line."""
    hands = with_followers(harness)
    first, second, _ = (hands.submit() for _ in range(3))
    may_run = iter((True,))
    hands.process.may_run = lambda spec: next(may_run, False)
    assert run_first(hands) is None
    assert (state(first), hands.gpu.sent) == ("completed", [first.id])
    assert (state(second), tries(second), hands.waiting()) == ("queued", 0, 2)
    assert hands.worker.completion.keeper.held() == 0
    assert hands.slot() == "free"
