"""A tenant's quota, rate and queue limit starts and restarts of runs alike."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.domain.errors import QuotaExhausted, RateLimited, TenantQueueFull
from jobs.domain.states import JobState
from jobs.models import Job
from tests.workflows.in_memory import ASK, Desk, desk
from workflows.models import Run
from workflows.operations.restart import restart_run

__all__ = ["desk"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
ONE = {"nodes": {"a": {"model": "m"}}}


def failed(desk: Desk, definition: dict[str, Any] = ONE) -> Run:
    run = desk.advance(desk.start(definition))
    desk.end_jobs(JobState.FAILED)
    assert desk.advance(run).state == "failed"
    return run


def test_a_restart_is_refused_once_the_quota_is_used_up(desk: Desk) -> None:
    run = failed(desk)
    desk.set_limits(daily_gpu_seconds=0.0)
    with pytest.raises(QuotaExhausted):
        restart_run(run.id, ports=desk.ports)
    run.refresh_from_db()
    assert (run.state, run.round) == ("failed", 1)
    desk.set_limits(daily_gpu_seconds=None)
    assert restart_run(run.id, ports=desk.ports).round == 2


def test_a_restart_takes_tokens_for_the_nodes_that_run_again(desk: Desk) -> None:
    nodes = {"a": {"model": "m"}, "b": {"model": "m", "needs": ["a"]}, "c": {"model": "m", "needs": ["b"]}}
    run = failed(desk, {"nodes": nodes})
    desk.set_limits(submits_per_second=0.001, submit_burst=5)
    restart_run(run.id, ports=desk.ports)
    desk.advance(run)
    desk.end_jobs(JobState.FAILED)
    assert desk.advance(run).state == "failed"
    with pytest.raises(RateLimited):
        restart_run(run.id, ports=desk.ports)


def test_a_restart_needs_a_place_in_the_queue(desk: Desk) -> None:
    run = failed(desk)
    desk.advance(desk.start())
    desk.set_limits(max_queued=1)
    with pytest.raises(TenantQueueFull):
        restart_run(run.id, ports=desk.ports)
    desk.end_jobs()
    assert restart_run(run.id, ports=desk.ports).state == "running"


def test_a_run_takes_a_place_in_the_queue_until_its_jobs_do(desk: Desk) -> None:
    desk.put("w", ONE)
    desk.set_limits(max_queued=2)
    first, second = desk.start(), desk.start()
    for _ in range(2):
        with pytest.raises(TenantQueueFull):
            desk.start()
        desk.advance(first)
        desk.advance(second)
    assert Job.objects.filter(state="queued").count() == 2
    desk.end_jobs(followed_by=f"run:{first.id}")
    third = desk.start()
    with pytest.raises(TenantQueueFull):
        desk.start()
    desk.advance(third)
    assert Job.objects.filter(state="queued").count() == 2


def test_a_restarted_run_takes_one_too(desk: Desk) -> None:
    runs = [failed(desk) for _ in range(2)]
    desk.set_limits(max_queued=1)
    restart_run(runs[0].id, ports=desk.ports)
    with pytest.raises(TenantQueueFull):
        restart_run(runs[1].id, ports=desk.ports)
    desk.advance(runs[0])
    desk.end_jobs()
    assert restart_run(runs[1].id, ports=desk.ports).state == "running"


def test_a_run_that_waits_for_a_person_takes_none(desk: Desk) -> None:
    desk.set_limits(max_queued=1)
    desk.advance(desk.start({"nodes": {"ask": ASK}}))
    assert desk.start().state == "running"
