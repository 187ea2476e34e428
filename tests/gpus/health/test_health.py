"""Health probes: timeouts, parsing of untrusted answers, and rare writes."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from foundation.secrets import encrypt
from gpus.health.health import (
    Health,
    evidence_for,
    health_url,
    probe,
    probe_all,
    record_health,
    refused_url,
)
from gpus.leasing.contract import Leases
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import Clock
from gpus.runners.http_runner import read_health
from gpus.runners.transport import HttpTransport
from tests.support.factories import make_model, make_server
from tests.support.fakes import AbsentLeases, ManualClock
from tests.support.servers.health_server import HealthServer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLOSED = "http://127.0.0.1:9/run"


@pytest.fixture
def gpu() -> Iterator[HealthServer]:
    with HealthServer() as server:
        yield server


def register(name: str = "s", **endpoints: str) -> Server:
    """endpoints: by model."""
    pool, _ = Pool.objects.get_or_create(name="p")
    server = Server.objects.create(name=name, pool=pool)
    for model, endpoint in endpoints.items():
        config, _ = ModelConfig.objects.get_or_create(name=model, defaults={"pool": pool})
        Placement.objects.create(server=server, model=config, endpoint=endpoint)
    return Server.objects.prefetch_related("placements__model").get(name=name)


def read(said: object) -> Health:
    return read_health(json.dumps(said).encode())


def test_all_health_fields_are_read() -> None:
    assert read(
        {
            "status": "ok",
            "active_jobs": 1,
            "max_concurrent": 2,
            "boot_id": "b",
            "jobs": [{"job_id": "j", "attempt": "a"}],
        }
    ) == Health(True, "b", 1, 2, frozenset({("j", "a")}))


@pytest.mark.parametrize(
    "said",
    [{"active_jobs": "1"}, {"active_jobs": -1}, {"active_jobs": True}, {"active_jobs": None}],
)
def test_an_invalid_count_is_ignored(said: object) -> None:
    assert read(said) == Health(True)


@pytest.mark.parametrize("said", [{}, {"status": "ok"}, {"version": 3}, [], "OK"])
def test_an_answer_without_protocol_fields_counts_as_no_health_endpoint(said: object) -> None:
    assert read(said) == Health(True, has_endpoint=False)


@pytest.mark.parametrize("jobs", ["a", {}, [1], [{"job_id": "j"}], [{"attempt": "a"}, {"attempt": None}]])
def test_half_a_list_of_jobs_is_none(jobs: object) -> None:
    assert read({"jobs": jobs}).jobs is None


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"null", b"\xff\xfe"])
def test_a_body_that_is_no_object_counts_as_no_health_endpoint(body: bytes) -> None:
    assert read_health(body) == Health(True, has_endpoint=False)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        rb'{"jobs": [{"job_id": "j", "attempt": "\ud800"}]}',
        rb'{"boot_id": "\u0000"}',
        b'{"active_jobs": ' + b"9" * 5000 + b"}",
        b'{"jobs": [' + b"[]," * 300_000 + b"[]]}",
    ],
)
def test_a_hostile_body_counts_as_no_health_endpoint(body: bytes) -> None:
    """Its fields would end in the database and in the index of the whole fleet."""
    assert read_health(body) == Health(True, has_endpoint=False)


@pytest.mark.django_db
def test_a_probe_goes_to_the_endpoints_origin_with_secret_headers(gpu: HealthServer) -> None:
    server = register(m=f"{gpu.url}/deep/path?x=1")
    server.headers_encrypted = encrypt('{"X-Secret": "s3cret"}')
    assert probe(server).ok
    assert gpu.asked[0]["path"] == "/health"
    assert gpu.asked[0]["x-secret"] == "s3cret"
    assert gpu.asked[0]["x-source"] == "dispatcher"


@pytest.mark.django_db
def test_a_server_that_fails_is_not_ok_and_says_why(gpu: HealthServer) -> None:
    gpu.status = 503
    health = probe(register(m=f"{gpu.url}/run"))
    assert not health.ok
    assert "503" in health.error
    assert "connect" in probe(register("down", m=CLOSED)).error
    assert "no HTTP endpoint" in probe(register("bare")).error


@pytest.mark.django_db
def test_answers_come_in_the_order_of_the_questions(gpu: HealthServer) -> None:
    up, down = register("up", m=f"{gpu.url}/run"), register("down", m=CLOSED)
    assert [health.ok for health in probe_all([(up, "m"), (down, "m"), (up, "")])] == [True, False, True]


@pytest.mark.django_db
def test_each_model_is_probed_at_its_own_origin() -> None:
    server = register(b="http://two:2/b", a="http://one:1/a")
    assert health_url(server, "b") == "http://two:2/health"
    assert health_url(server) == health_url(server, "unknown") == "http://one:1/health"


@pytest.mark.django_db
def test_the_row_is_written_on_changes_and_every_half_minute() -> None:
    server = register(m=CLOSED)
    updated_at = server.updated_at
    healthy = Health(True, boot_id="b1")

    def written(health: Health, seconds: float) -> bool:
        return record_health(server, health, NOW + timedelta(seconds=seconds))

    assert written(healthy, 0)
    assert not written(healthy, 29)
    assert written(healthy, 30)
    assert written(Health(False, error="gone"), 31)
    assert not written(Health(False, error="gone"), 90)
    row = Server.objects.get(name="s")
    assert (row.healthy, row.last_error, row.boot_id) == (False, "gone", "b1")
    assert row.checked_at == NOW + timedelta(seconds=30), "when it last answered, under that boot"
    assert row.updated_at == updated_at, "the registry did not change"
    assert written(Health(True, boot_id="b2"), 91)
    row.refresh_from_db()
    assert (row.healthy, row.last_error, row.boot_id) == (True, "", "b2")


@pytest.mark.django_db
def test_evidence_is_an_attempt_missing_from_the_list(gpu: HealthServer) -> None:
    register(m=f"{gpu.url}/run")
    gpu.runs("a1")
    assert evidence_of("a1") is None
    assert evidence_of("a2") == "the server does not run it"


class QuietFor:
    """A lease layer: so long ago did a lease of any server last change."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def last_lease_change_seconds(self, server: str) -> float:
        return self.seconds


class SlowProbe(ManualClock):
    """Every look at it is a second later."""

    def monotonic(self) -> float:
        self.move(1.0)
        return super().monotonic()


def evidence_by_count(leases: QuietFor | AbsentLeases, clock: Clock | None = None) -> str | None:
    return evidence_of("a", leases=leases, clock=clock)


def evidence_of(
    attempt: str, *, server: str = "s", leases: Any = None, clock: Clock | None = None
) -> str | None:
    """Without leases: Redis is away."""
    return evidence_for(
        server,
        attempt,
        transport=HttpTransport(),
        leases=cast(Leases, leases or AbsentLeases()),
        clock=clock or ManualClock(),
    )


@pytest.mark.django_db
def test_evidence_by_count_is_only_a_zero(gpu: HealthServer) -> None:
    register(m=f"{gpu.url}/run")
    gpu.counts(1)
    assert evidence_by_count(QuietFor(60.0)) is None
    gpu.counts(0)
    assert evidence_by_count(QuietFor(60.0)) == "the server runs nothing"


@pytest.mark.django_db
def test_a_count_is_no_evidence_until_the_servers_leases_were_quiet_before_and_during_the_probe(
    gpu: HealthServer,
) -> None:
    register(m=f"{gpu.url}/run")
    gpu.counts(0)
    assert evidence_by_count(QuietFor(4.9)) is None
    assert evidence_by_count(QuietFor(5.0)) == "the server runs nothing"
    assert evidence_by_count(QuietFor(5.9), SlowProbe()) is None
    assert evidence_by_count(QuietFor(6.0), SlowProbe()) == "the server runs nothing"


@pytest.mark.django_db
def test_without_redis_a_count_is_no_evidence_and_a_list_still_is(gpu: HealthServer) -> None:
    register(m=f"{gpu.url}/run")
    gpu.counts(0)
    assert evidence_by_count(AbsentLeases()) is None
    gpu.runs()
    assert evidence_by_count(AbsentLeases()) == "the server does not run it"


@pytest.mark.django_db
def test_there_is_no_evidence_without_an_answer_from_every_origin(gpu: HealthServer) -> None:
    register(a=f"{gpu.url}/run", b=CLOSED)
    gpu.runs()
    assert evidence_of("a1") is None
    assert evidence_of("a1", server="unknown") is None


@pytest.mark.django_db
def test_a_process_that_breaks_a_last_connection_is_asked_again() -> None:
    """As one does that was killed a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        make_server("gpu-1", model=make_model("m"), endpoint=f"{url}/run")

        def die() -> None:
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            listener.close()

        dying = threading.Thread(target=die)
        dying.start()
        assert refused_url("gpu-1", "m", transport=HttpTransport()) == f"{url}/health"
        dying.join()
