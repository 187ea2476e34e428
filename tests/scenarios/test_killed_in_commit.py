"""A process that is killed after it sent COMMIT, before it reads the answer: what it wrote stands, once."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from gpus.protocol import LeaseRef, slot_name
from jobs.models import Attempt, Callback, CallbackTry, Job
from tests.support.servers.callback_receiver import Receiver
from tests.support.system.client import Client
from tests.support.system.commit_killer import CommitKiller
from tests.support.system.gates import open_gate
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


@pytest.fixture(scope="module")
def tenant(shared_system: System) -> tuple[Client, str]:
    """Its client and its webhook secret."""
    key = json.loads(shared_system.manage("create_key", "--tenant", "of-the-killed", "--json"))
    return shared_system.client(key["key"]), key["webhook_secret"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.open()
    yield receiver
    receiver.close()


@pytest.mark.database
def test_a_submit_repeated_after_the_web_process_died_is_the_same_job(
    system: System, judge: Judge, commit_killer: CommitKiller
) -> None:
    server = system.add_server("submitted")
    query = "SELECT 1 FROM jobs_job WHERE model = 'submitted'"
    with (
        commit_killer.kills(system, judge, "web", query),
        pytest.raises((urllib.error.URLError, http.client.HTTPException, OSError)),
    ):
        _submit(system, "submitted")
    again = _submit(system, "submitted")
    system.tenant.accepted += 1
    assert system.tenant.finished(again["job_id"])["status"] == "completed"
    with judge.rows():
        assert list(Job.objects.filter(model="submitted").values_list("id", flat=True)) == [again["job_id"]]
    server.assert_each_ran_once([again["job_id"]])


@pytest.mark.parametrize(
    ("mode", "state", "states"),
    [
        pytest.param("sync", "sent", ["lost", "completed"], marks=pytest.mark.database),
        ("sync", "completed", ["completed"]),
        ("async", "waiting", ["completed"]),
        pytest.param("async", "completed", ["completed"], marks=pytest.mark.database),
    ],
)
def test_a_start_and_an_end_that_the_worker_died_over_stand_once(
    system: System,
    judge: Judge,
    commit_killer: CommitKiller,
    tenant: tuple[Client, str],
    receiver: Receiver,
    *,
    mode: str,
    state: str,
    states: list[str],
) -> None:
    """states: of the job's attempts in the end. A polled run is adopted by the next worker."""
    client, secret = tenant
    model = f"{state}-{mode}"
    server = system.add_server(model, mode=mode)
    if state == "completed":
        open_gate(model)  # while it is shut, no start is committed together with its end
    query = f"SELECT 1 FROM jobs_attempt WHERE state = '{state}' AND model = '{model}'"
    with commit_killer.kills(system, judge, "gpu_worker", query):
        job_id = client.submit(model, {"gate": model}, callback_url=receiver.url)
    open_gate(model)
    assert client.finished(job_id)["status"] == "completed"
    _wait_until_delivered(judge, job_id)
    ref = _ref(_attempts(judge, job_id)[-1])
    wait_for(lambda: not judge.leases.is_held(ref), what="the end of its lease")
    assert [attempt.state for attempt in _attempts(judge, job_id)] == states
    if states == ["completed"]:
        server.assert_each_ran_once([job_id])
    assert [message["status"] for message in receiver.messages(secret)] == ["completed"]
    server.assert_never_full()


@pytest.mark.database
def test_a_delivery_that_the_callbacks_worker_died_over_is_not_repeated(
    system: System,
    judge: Judge,
    commit_killer: CommitKiller,
    tenant: tuple[Client, str],
    receiver: Receiver,
) -> None:
    client, secret = tenant
    system.add_server("delivered")
    query = f"SELECT 1 FROM jobs_callback WHERE state = 'delivered' AND url = '{receiver.url}'"
    with commit_killer.kills(system, judge, "callbacks", query):
        first = client.submit("delivered", {"n": 1}, callback_url=receiver.url)
    second = client.submit("delivered", {"n": 2}, callback_url=receiver.url)
    _wait_until_delivered(judge, first)
    _wait_until_delivered(judge, second)
    assert [message["job_id"] for message in receiver.messages(secret)] == [first, second]
    with judge.rows():
        assert CallbackTry.objects.filter(callback__job_id=first).count() == 1


def _attempts(judge: Judge, job_id: str) -> list[Attempt]:
    with judge.rows():
        return list(Attempt.objects.filter(job_id=job_id).order_by("number"))


def _ref(attempt: Attempt) -> LeaseRef:
    return LeaseRef(slot_name(attempt.server, attempt.slot), attempt.job_id, attempt.id, attempt.epoch)


def _wait_until_delivered(judge: Judge, job_id: str) -> None:
    with judge.rows():
        wait_for(
            lambda: Callback.objects.filter(job_id=job_id, state=Callback.State.DELIVERED).exists(),
            what="the end of its delivery",
        )


def _submit(system: System, model: str) -> dict[str, Any]:
    """Always under the same idempotency key."""
    request = urllib.request.Request(
        f"{system.tenant.url}/api/v1/queue/submit",
        method="POST",
        data=json.dumps({"model": model, "payload": {"n": 1}}).encode(),
        headers={
            "Authorization": f"Bearer {system.facts['tenant_key']}",
            "Content-Type": "application/json",
            "Idempotency-Key": model,
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.load(answer))
