"""A plain server that handles one request at a time is silent during a run: busy, not unhealthy."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpus.errors import ServerFailed
from gpus.health.health import probe
from gpus.models import Server
from gpus.protocol import Lease, ReleaseMode
from gpus.registry import queries
from gpus.registry.queries import rows_changed
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.models import Attempt
from jobs.sweeps import lock_sync
from jobs.transitions import End
from tests.dispatcher_project.cli.doctor.patient import Patient, patient  # noqa: F401
from tests.support.by_process import run_sweep
from tests.support.ports import free_port
from tests.support.queue_harness import QueueHarness
from tests.support.servers.plain_server import PlainServer
from tests.support.servers.raw_server import RawServer, Visit
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, plain_server_harness, state


@pytest.fixture(autouse=True)
def short_patience(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, health_timeout_seconds=0.3)


# -- with a real server and a real run ---------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlainServer]:
    with PlainServer(tmp_path, one_thread=True) as server:
        yield server


@pytest.fixture
def harness(valkey: Any, fleet: str, plain: PlainServer) -> Iterator[WorkerHarness]:
    with plain_server_harness(valkey.url, fleet, plain) as harness:
        yield harness


@pytest.mark.django_db(transaction=True)
def test_a_plain_server_stays_healthy_during_a_run(harness: WorkerHarness, plain: PlainServer) -> None:
    run_sweep("lock_sync", harness.ports)
    assert (Server.objects.get().healthy, Server.objects.get().tells_health) == (True, False)
    job = harness.submit({"gate": "a"})
    harness.work(harness.worker())
    wait_for(lambda: plain.began() == 1 and state(job) == "running")
    count = run_sweep("lock_sync", harness.ports)
    server = Server.objects.get()
    assert probe(server).timed_out, "the server does not answer"
    assert (count.looked, count.failed, count.notes) == (1, 0, ())
    assert (server.healthy, server.last_error) == (True, "")
    rows_changed.send(None)
    assert queries.has_capacity("m")
    plain.open("a")
    wait_for(lambda: state(job) == "completed")


# -- with a server scripted by the test -----------------------------------------------------------


class Answers:
    """The server's health: 404 while it listens, else no answer."""

    def __init__(self) -> None:
        self.listens = True

    def __call__(self, visit: Visit) -> None:
        visit.read_request()
        if self.listens:
            visit.send(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        else:
            visit.wait_for_hang_up()


@pytest.fixture
def answers(queue: QueueHarness) -> Iterator[Answers]:
    """Probe the one server, which was found to be a plain one and is silent now."""
    answers = Answers()
    with RawServer(answers) as raw:
        queue.server(url=raw.url)
        judge(queue)
        assert (Server.objects.get().healthy, Server.objects.get().tells_health) == (True, False)
        answers.listens = False
        yield answers


def judge(queue: QueueHarness) -> bool | None:
    assert run_sweep("lock_sync", queue.ports).failed == 0
    return Server.objects.get().healthy


def end(queue: QueueHarness, lease: Lease) -> None:
    ending = Ending(ServerFailed())
    transitions.end_attempt(
        End(lease.job_id, lease.attempt_id, 1, lease.slot, ending, RetryPolicy(), queue.clock.now())
    )


def test_a_plain_server_is_probed_again_after_its_run(queue: QueueHarness, answers: Answers) -> None:
    job = queue.job()
    lease = queue.claim()
    assert judge(queue) is True
    queue.clock.advance(1)
    end(queue, lease)
    queue.release(lease, ReleaseMode.FREE)
    assert not Attempt.objects.filter(job=job, state__in=Attempt.LIVE).exists()
    assert judge(queue) is False
    assert "timeout" in Server.objects.get().last_error
    answers.listens = True
    assert judge(queue) is True


def test_a_run_that_began_and_ended_during_the_probe_excuses_the_timeout(
    queue: QueueHarness, answers: Answers
) -> None:
    queue.job()
    asked_at = queue.clock.now()
    lease = queue.claim()
    end(queue, lease)
    health = probe(Server.objects.get())
    assert lock_sync._is_busy(lock_sync._Answer(Server.objects.get(), health, asked_at, had_run=False))
    later = asked_at + timedelta(seconds=1)
    assert not lock_sync._is_busy(lock_sync._Answer(Server.objects.get(), health, later, had_run=False))


def test_without_redis_a_server_with_a_run_still_counts_as_busy(
    queue: QueueHarness, answers: Answers
) -> None:
    queue.job()
    queue.claim()
    queue.redis_is_gone = True
    run_sweep("lock_sync", queue.ports)
    assert Server.objects.get().healthy is True


def test_a_silent_server_with_a_health_endpoint_is_unhealthy(queue: QueueHarness, answers: Answers) -> None:
    Server.objects.update(tells_health=True)
    queue.job()
    queue.claim()
    assert judge(queue) is False


def test_a_refused_connection_is_unhealthy_even_during_a_run(queue: QueueHarness) -> None:
    queue.server(url=f"http://127.0.0.1:{free_port()}/run")
    Server.objects.update(healthy=True, tells_health=False)
    queue.job()
    queue.claim()
    assert judge(queue) is False
    assert probe(Server.objects.get()).refused


def test_a_full_accept_queue_counts_as_a_timeout(queue: QueueHarness) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        queue.server(url=f"http://127.0.0.1:{address[1]}/run")
        Server.objects.update(healthy=True, tells_health=False)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(address)
        try:
            health = probe(Server.objects.get())
            assert (health.timed_out, health.refused) == (True, False)
            assert health.error.startswith("connect: "), "the connection was refused"
            queue.job()
            queue.claim()
            assert judge(queue) is True
        finally:
            for sock in waiting:
                sock.close()


def test_doctor_reports_no_outdated_health_during_a_run(patient: Patient) -> None:  # noqa: F811
    long_ago = patient.queue.clock.now() - timedelta(hours=1)
    Server.objects.update(tells_health=False, checked_at=long_ago)
    assert "server gpu-1" in patient.ill()
    patient.queue.job()
    patient.queue.claim()
    assert "server gpu-1" not in patient.ill()
    Server.objects.update(tells_health=True)
    assert "server gpu-1" in patient.ill()
