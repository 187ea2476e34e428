"""A plain server is killed during a run, and is back a moment later: the next job runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpus.health.evidence import REFUSED_BEFORE
from gpus.models import QuarantinedSlot, Server
from jobs.sweeps import quarantine
from tests.support.servers.plain_server import PlainServer
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, plain_server_harness, state

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=[404, 405, 501])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlainServer]:
    with PlainServer(tmp_path, request.param) as server:
        yield server


@pytest.fixture
def harness(valkey: Any, fleet: str, plain: PlainServer) -> Iterator[WorkerHarness]:
    with plain_server_harness(valkey.url, fleet, plain) as harness:
        yield harness


def test_a_lost_plain_servers_slot_is_free_at_the_first_health_check_after_its_return(
    harness: WorkerHarness, plain: PlainServer
) -> None:
    worker = harness.worker()
    job = harness.submit({"gate": "a"})
    thread = harness.work(worker)
    wait_for(lambda: plain.began() == 1 and state(job) == "running")
    plain.kill()
    wait_for(lambda: QuarantinedSlot.objects.filter(freed_at=None).exists())
    thread.join(60)
    assert QuarantinedSlot.objects.get().refused_at is not None, (
        "its worker saw that the port refused connections"
    )
    plain.start()  # no sweep looked while it was away
    plain.open("a")

    def is_free() -> bool:
        return quarantine.sweep(harness.ports).repaired == 1

    wait_for(is_free)
    row = QuarantinedSlot.objects.get()
    assert row.evidence == REFUSED_BEFORE
    assert Server.objects.get().checked_at is not None
    next_job = harness.submit({"seconds": 0})
    harness.work(worker).join(60)
    wait_for(lambda: state(next_job) == "completed")
