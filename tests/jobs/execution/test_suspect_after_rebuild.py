"""A suspect slot stays in quarantine after Redis was flushed."""

from __future__ import annotations

import threading

import pytest
import redis

from gpus.leasing.keys import prefix
from gpus.models import QuarantinedSlot
from jobs.index_rebuild.rebuild import Progress, Rebuild
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_suspect_slot_stays_in_quarantine_if_its_end_is_committed_after_a_rebuild(harness, valkey):
    harness.submit({"fault": "drop_reply", "seconds": 0.05})
    harness.submit({"seconds": 0.01})
    worker = harness.worker()
    gate = threading.Event()
    worker.claims.must_await_starts = lambda *_: False
    worker.completion.writer.submit(lambda: gate.wait(30))  # the database is slow
    worker.gate.may_claim = lambda: (
        worker.busy() == 0 and not gate.is_set() and not worker.completion.keeper.held()
    )
    worker.work("m")
    assert harness.leases.slots("gpu-1")[0].state == "quarantined"
    client = redis.Redis.from_url(valkey.url)
    client.delete(*client.keys(prefix(harness.leases.fleet) + "*"))
    rebuild = Rebuild("main", harness.leases, harness.ports, "r")
    while (progress := rebuild.step()) is not Progress.OPEN:
        assert progress is not Progress.BUSY_ELSEWHERE
        if progress is Progress.LISTENING:
            worker.completion.keeper.step(harness.ports.clock.monotonic() + 100)
            rebuild.listening_since -= 100
    gate.set()
    wait_for(lambda: worker.completion.keeper.held() == 0)
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    assert harness.leases.slots("gpu-1")[0].state == "quarantined"
