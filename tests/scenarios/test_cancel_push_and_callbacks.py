"""Cancels and pushed results between client and GPU server, and signed callbacks, on a whole system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs.models import Attempt, CallbackTry
from tests.support.servers.callback_receiver import Receiver
from tests.support.system.gates import open_gate
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario
AN_HOUR = 3600.0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_cancel_reaches_the_run_and_is_proven_there(system: System, judge: Judge, mode: str) -> None:
    model = f"cancel-{mode}"
    server = system.add_server(model, mode=mode, **({"poll_interval": AN_HOUR} if mode == "async" else {}))
    job_id = system.tenant.submit(model, {"gate": "never"})
    wait_for(lambda: system.tenant.job(job_id)["status"] == "running" and server.running(), what="a run")
    assert system.tenant.cancel(job_id) == "requested"
    wait_for(lambda: server.runs_of(job_id)[0]["outcome"] == "cancelled", what="its end at the server")
    job = system.tenant.finished(job_id)
    assert (job["status"], job["error"]["code"]) == ("cancelled", "cancelled")
    proofs = {"server confirmed the cancel"}
    if mode == "sync":  # the run's own answer may come before that to the cancel
        proofs.add("the server answered its request")
    with judge.rows():
        assert Attempt.objects.get(job_id=job_id).evidence in proofs


def test_a_pushed_result_ends_a_job_that_is_polled_once_an_hour(system: System) -> None:
    server = system.add_server("pushed", mode="async", push=True, poll_interval=AN_HOUR)
    job_id = system.tenant.submit("pushed", {"gate": "pushed"})
    wait_for(lambda: server.running() == [job_id], what="a run")
    open_gate("pushed")
    job = system.tenant.finished(job_id)
    assert (job["status"], job["result"]) == ("completed", {"echo": {"gate": "pushed"}})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_callbacks_are_signed_and_come_once_also_to_a_receiver_that_was_down(
    system: System, judge: Judge, receiver: Receiver
) -> None:
    printed = dict(
        line.split(": ") for line in system.manage("create_key", "--tenant", "callbacks").strip().splitlines()
    )
    client = system.client(printed["api key"])
    system.add_server("callbacks")
    early = client.submit("callbacks", {"n": 1}, callback_url=receiver.url)
    wait_for(lambda: _failed_tries(judge, early), what="a try at a closed port")
    receiver.open()
    late = client.submit("callbacks", {"n": 2}, callback_url=receiver.url)
    wait_for(lambda: receiver.job_ids(printed["webhook secret"]) >= {early, late}, what="both callbacks")
    messages = receiver.messages(printed["webhook secret"])
    assert sorted(message["job_id"] for message in messages) == sorted([early, late])
    assert {message["status"] for message in messages} == {"completed"}


def _failed_tries(judge: Judge, job_id: str) -> int:
    with judge.rows():
        return CallbackTry.objects.filter(callback__job_id=job_id, status_code=None).exclude(error="").count()
