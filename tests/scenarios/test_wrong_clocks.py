"""Processes whose hosts' wall clocks are wrong, each by another amount, work as usual together."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.servers.callback_receiver import Receiver
from tests.support.system.running import System
from tests.support.waiting import wait_for
from verification.proving.clocks import Clocks

pytestmark = pytest.mark.scenario
SECONDS_OFF = {"beat": -120.0, "gpu_worker": 120.0, "sweeps": 90.0, "callbacks": -3600.0}
JOBS = 8


@pytest.fixture
def wrong_clocks(system: System, clocks: Clocks) -> Iterator[None]:
    if clocks.why_not:
        pytest.skip(clocks.why_not)
    for word, seconds in SECONDS_OFF.items():
        clocks.shift(word, seconds)
    yield
    for word in SECONDS_OFF:
        clocks.shift(word, 0.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.open()
    yield receiver
    receiver.close()


@pytest.mark.usefixtures("wrong_clocks")
def test_no_message_is_judged_by_the_clocks_of_two_hosts(system: System, receiver: Receiver) -> None:
    """No wake, no tick and no hint of a callback is dropped as too old; signatures carry the true time."""
    made = system.manage("create_key", "--tenant", "of-wrong-clocks").strip()
    printed = dict(line.split(": ") for line in made.splitlines())
    client = system.client(printed["api key"])
    system.add_server("clocks", slots=2)
    ids = {client.submit("clocks", {"n": number}, callback_url=receiver.url) for number in range(JOBS)}
    for job_id in ids:
        job = client.finished(job_id)
        assert (job["status"], len(job["attempts"])) == ("completed", 1)
    wait_for(lambda: receiver.job_ids(printed["webhook secret"]) == ids, what="all callbacks")
    sweeps = system.folder / "log" / "sweeps.log"
    wait_for(lambda: "clocks_disagree" in sweeps.read_text(), what="a clock that is wrong")
    with urllib.request.urlopen(f"{system.facts['url']}/readyz", timeout=30) as answer:
        assert json.load(answer)["last_sweep_seconds"] < 60.0
