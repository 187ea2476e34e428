"""Processes whose hosts' wall clocks are wrong, each by another amount, work as usual together."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_project.embedded import find_valkey
from tests.dispatcher_project.worker_bench import wait_for
from tests.scenarios.callback_receiver import Receiver
from tests.scenarios.running import System

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary"),
]
SKEWED = Path(__file__).with_name("skewed")
CLOCKS = {" beat ": -120.0, "gpu_worker": 120.0, "--queues sweeps": 90.0, "--queues callbacks": -3600.0}
"""Seconds, by a word of the process' command line."""
JOBS = 8


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    system = System(
        tmp_path / "var", environment={"PYTHONPATH": str(SKEWED), "TEST_CLOCKS": json.dumps(CLOCKS)}
    )
    yield system
    system.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.open()
    yield receiver
    receiver.close()


def test_no_message_is_judged_by_the_clocks_of_two_hosts(system: System, receiver: Receiver) -> None:
    """No wake, no tick and no hint of a callback is dropped as too old; signatures carry the true time."""
    printed = dict(
        line.split(": ") for line in system.manage("create_key", "--tenant", "told").strip().splitlines()
    )
    client = system.client(printed["api key"])
    system.add_server("clocks", slots=2)
    ids = {client.submit("clocks", {"n": number}, callback_url=receiver.url) for number in range(JOBS)}
    for job_id in ids:
        job = client.finished(job_id)
        assert (job["status"], len(job["attempts"])) == ("completed", 1)
    wait_for(lambda: receiver.job_ids(printed["webhook secret"]) == ids, what="all callbacks")
    with urllib.request.urlopen(f"{system.facts['url']}/readyz", timeout=30) as answer:
        assert json.load(answer)["last_sweep_seconds"] < 60.0
