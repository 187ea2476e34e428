"""`quarantine` lists suspect slots, `free` gives one back on an operator's word."""

from __future__ import annotations

import pytest

from gpus.models import AuditEntry, Server
from gpus.registry.audit import cli_actor
from tests.support.quarantines import quarantine_slot
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


def test_a_quarantined_slot_is_listed_and_freed(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    assert terminal("quarantine").said == "no slot is in quarantine\n"
    job = queue.job()
    quarantine_slot(queue, queue.claim())
    Server.objects.update(tells_health=False)
    heads, line = terminal("quarantine").said.splitlines()
    assert heads.split()[:3] == ["slot", "for", "reason"]
    assert line.split()[0] == "gpu-1/0"
    assert job.id in line
    assert "no health endpoint" in line
    (row,) = terminal("quarantine", "--json").json["results"]
    assert (row["slot"], row["job_id"], row["tells_health"]) == ("gpu-1/0", job.id, False)
    assert terminal("free", "gpu-1/0").status == 2, "it asks first"
    assert queue.slot() == "quarantined"
    assert terminal("free", "gpu-1/0", "--yes", "--reason", "seen").said == "gpu-1/0 is free\n"
    assert queue.slot() == "free"
    entry = AuditEntry.objects.get(action="free_slot")
    assert (entry.actor, entry.detail["reason"]) == (cli_actor(), "seen")


def test_a_slot_that_is_not_in_quarantine_is_one_line(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    assert terminal("free", "gpu-1/0", "--yes").said == "Slot gpu-1/0 is not in quarantine."
    assert "no slot 'gpu-9/0'" in terminal("free", "gpu-9/0", "--yes").said


def test_every_slot_is_checked_before_the_question(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    queue.job()
    quarantine_slot(queue, queue.claim())
    refused = terminal("free", "gpu-1/0", "gpu-1/7")
    assert refused.status == 2
    assert refused.said == "There is no slot 'gpu-1/7'; gpu-1 has 1 slot, counted from 0."
    assert terminal("free", "gpu-1/0", "gpu-1/7", "--yes").status == 2
    assert queue.slot() == "quarantined", "all of them or none"
