"""Files that a result names by URL. A real model server, file server, store, Valkey and database."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from artifacts.models import Artifact
from foundation.fetch import Fetched
from foundation.secrets import encrypt
from gpus.errors import OutputInvalid, OutputNotStored, OutputRefused
from gpus.models import Server
from jobs.callbacks import guard
from jobs.domain.states import JobState
from jobs.execution import url_files
from jobs.models import Attempt
from jobs.operations.jobs import cancel_job
from tests.support.answer_files import (
    PNG,
    answer,
    configure,
    content,
    failed,
    harness,
    limited,
    run_once,
    server,
)
from tests.support.ports import free_port
from tests.support.servers.answering import Answering, answering
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

__all__ = ["harness", "server"]

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def other() -> Iterator[Answering]:
    """A file server at another origin."""
    with answering(Answering(get=lambda path: PNG)) as other:
        yield other


@pytest.fixture(autouse=True)
def named(harness: WorkerHarness) -> None:
    configure(output_files=["file"])


def serve(server: Answering, *paths: str, data: bytes | Iterable[bytes] = PNG, **headers: str) -> None:
    server.get = lambda path: data if path in paths else b"{}"
    server.headers = headers


def test_a_url_at_its_servers_own_origin_is_read_with_its_headers(harness, server) -> None:
    Server.objects.update(headers_encrypted=encrypt(json.dumps({"Authorization": "Bearer t"})))
    answer(server, {"file": f"{server.url}/files/a%20cat.png?v=1", "seed": 7})
    serve(server, "/files/a%20cat.png?v=1")
    job = run_once(harness)
    assert content(harness, job.result["file"]) == (PNG, "image/png")
    assert Artifact.objects.get().name == "a cat.png"
    assert job.result["seed"] == 7
    asked = [headers["Authorization"] for request, headers in server.seen if request.startswith("GET /files")]
    assert asked == ["Bearer t"]


def test_the_servers_type_counts_only_for_bytes_that_are_not_recognised(harness, server) -> None:
    answer(server, {"file": f"{server.url}/f"})
    serve(server, "/f", data=b"plain words", **{"Content-Type": "text/plain; charset=utf-8"})
    assert content(harness, run_once(harness).result["file"]) == (b"plain words", "text/plain")
    serve(server, "/f", **{"Content-Type": "text/html"})
    assert content(harness, run_once(harness).result["file"]) == (PNG, "image/png")


def test_a_redirect_at_the_same_origin_is_followed(harness, server) -> None:
    answer(server, {"file": f"{server.url}/old"})
    hops = []

    def get(path: str) -> bytes:
        hops.append(path)
        server.status, server.headers = (302, {"Location": "/new"}) if path == "/old" else (200, {})
        return PNG if path == "/new" else b"moved"

    server.get = get
    assert content(harness, run_once(harness).result["file"])[0] == PNG
    assert hops[-2:] == ["/old", "/new"]


def test_endless_redirects_end(harness, server) -> None:
    answer(server, {"file": f"{server.url}/old"})
    real = server.post

    def post(payload: Any) -> Any:
        server.status, server.headers = 200, {}
        return real(payload)

    def get(path: str) -> bytes:
        server.status, server.headers = 302, {"Location": "/old"}
        return b""

    server.post, server.get = post, get
    assert "more than 5 redirects" in failed(harness, OutputInvalid, "output_invalid")


# -- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:{port}/secret",
        "https://localhost:{port}/secret",
        "https://[::ffff:127.0.0.1]:{port}/secret",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.7:9000/x",
    ],
)
def test_a_private_address_other_than_the_servers_own_is_not_read(harness, server, other, url: str) -> None:
    answer(server, {"file": url.format(port=other.url.rpartition(":")[2])})
    message = failed(harness, OutputInvalid, "output_invalid")
    assert "address that this dispatcher must not read" in message
    assert "DISPATCHER_FETCHED_URL_NETWORKS" in message
    assert other.seen == []


def test_a_redirect_to_a_private_address_is_not_followed(harness, server, other) -> None:
    answer(server, {"file": f"{server.url}/old"})
    target = other.url.replace("http://", "https://") + "/secret"

    def get(path: str) -> bytes:
        server.status, server.headers = 302, {"Location": target}
        return b""

    server.get = get
    assert "must not read" in failed(harness, OutputInvalid, "output_invalid")
    assert other.seen == []


@pytest.mark.parametrize("url", ["{other}/f", "http://user:pw@{host}/f", "http://{host}:99999/f", "https://"])
def test_http_elsewhere_and_malformed_urls_are_refused(harness, server, other, url: str) -> None:
    host = server.url.removeprefix("http://")
    answer(server, {"file": url.format(other=other.url, host=host)})
    assert "/file can't be read: its URL" in failed(harness, OutputInvalid, "output_invalid")
    assert other.seen == []


def test_a_url_of_another_origin_gets_no_headers_of_the_server(harness, server, monkeypatch) -> None:
    """The file is read by the client for strangers' URLs, which sends no header of ours."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    async def fetch(url: str, add: Any, *, limits: Any, allowed: Any) -> Any:
        target = guard.read_url(url)
        asked.append((url, tuple(map(str, await allowed(target)))))
        add(PNG)
        return Fetched(len(PNG), "")

    monkeypatch.setattr("foundation.fetch.fetch", fetch)
    answer(server, {"file": "https://93.184.216.34/cat.png"})
    assert content(harness, run_once(harness).result["file"])[0] == PNG
    assert asked == [("https://93.184.216.34/cat.png", ("93.184.216.34",))]


def test_an_allowed_private_network_is_read(harness, server, settings, monkeypatch) -> None:
    limited(settings, fetched_url_networks=("10.0.0.0/8",))
    allowed_ones: list[str] = []

    async def fetch(url: str, add: Any, *, limits: Any, allowed: Any) -> Any:
        allowed_ones.extend(map(str, await allowed(guard.read_url(url))))
        add(PNG)
        return Fetched(len(PNG), "")

    monkeypatch.setattr("foundation.fetch.fetch", fetch)
    answer(server, {"file": "https://10.0.0.7:9000/x"})
    run_once(harness)
    assert allowed_ones == ["10.0.0.7"]


# -- what goes wrong ------------------------------------------------------------------------------


def with_status(server: Answering, status: int, *, path: str = "/f") -> None:
    """Answer the file with this status."""
    real = server.post

    def post(payload: Any) -> Any:
        server.status = 200
        return real(payload)

    def get(asked: str) -> bytes:
        server.status = status if asked == path else 200
        return b"no"

    server.post, server.get = post, get


@pytest.mark.parametrize("status", [401, 404, 410, 204])
def test_a_file_that_is_not_there_is_for_good(harness, server, status: int) -> None:
    answer(server, {"file": f"{server.url}/f"})
    with_status(server, status)
    assert f"/file can't be read: its URL answers {status}" in failed(
        harness, OutputInvalid, "output_invalid"
    )


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_fails_is_asked_again_and_costs_a_try_in_the_end(harness, server, status: int) -> None:
    answer(server, {"file": f"{server.url}/f"})
    with_status(server, status)
    message = failed(harness, OutputNotStored, "output_not_stored", retried=True)
    assert f"answers {status}" in message
    assert sum(request == "GET /f" for request, _ in server.seen) > 1


def test_a_file_server_that_is_away_is_asked_again(harness, server, settings) -> None:
    limited(settings, artifact_save_seconds=20.0)
    answer(server, {"file": f"{server.url}/f"})
    tries = []
    real = server.get

    def get(path: str) -> bytes:
        if path != "/f":
            return real(path)
        tries.append(path)
        server.status = 503 if len(tries) == 1 else 200
        return PNG

    server.get = get
    assert content(harness, run_once(harness).result["file"])[0] == PNG
    assert len(tries) == 2
    assert Attempt.objects.count() == 1


def test_a_file_that_is_too_large_names_the_setting(harness, server, settings) -> None:
    answer(server, {"file": f"{server.url}/f"})
    limited(settings, max_artifact_bytes=100_000)
    for data in (PNG, [PNG[:60_000], PNG[60_000:]]):
        serve(server, "/f", data=data)
        message = failed(harness, OutputRefused, "output_refused")
        assert "more than 100000 bytes (DISPATCHER_MAX_ARTIFACT_BYTES)" in message


def test_a_cut_file_is_not_stored(harness, server) -> None:
    answer(server, {"file": f"{server.url}/f"})
    body = server.post(None)
    server.post = lambda payload: (server.headers.clear(), body)[1]

    def get(path: str) -> bytes:
        server.headers["Content-Length"] = str(len(PNG) + 1)
        return PNG

    server.get = get
    message = failed(harness, OutputNotStored, "output_not_stored", retried=True)
    assert "connection to its server broke" in message


def test_a_slow_drip_ends_in_time(harness, server, settings) -> None:
    limited(settings, output_fetch_seconds=1.0, artifact_save_seconds=0.0)
    answer(server, {"file": f"{server.url}/f"})
    go = threading.Event()

    def drip() -> Iterator[bytes]:
        for _ in range(600):
            yield b"x"
            if go.wait(0.1):
                return

    serve(server, "/f", data=drip())
    try:
        message = failed(harness, OutputNotStored, "output_not_stored", retried=True)
    finally:
        go.set()
    assert "DISPATCHER_OUTPUT_FETCH_SECONDS" in message


@pytest.mark.parametrize("what", ["cancel", "deadline"])
def test_a_cancel_and_the_deadline_break_the_read_off(harness, server, what: str) -> None:
    answer(server, {"file": f"{server.url}/f"})
    reading, go = threading.Event(), threading.Event()

    def drip() -> Iterator[bytes]:
        yield b"x"
        reading.set()
        go.wait(60)

    serve(server, "/f", data=drip())
    deadline = None if what == "cancel" else timedelta(seconds=1)
    job = harness.submit(deadline_at=deadline and harness.ports.clock.now() + deadline)
    try:
        harness.work(harness.worker())
        assert reading.wait(30)
        if what == "cancel":
            cancel_job(job.pk, ports=harness.ports)
        ended = wait_for(lambda: state(job) in (JobState.CANCELLED, JobState.FAILED), seconds=30)
    finally:
        go.set()
    assert ended
    job.refresh_from_db()
    assert job.error_code == ("cancelled" if what == "cancel" else "stopped_by_deadline")
    assert Attempt.objects.get().slot_freed


def test_a_compressed_file_is_refused(harness, server) -> None:
    answer(server, {"file": f"{server.url}/f"})
    body = server.post(None)
    server.post = lambda payload: (server.headers.clear(), body)[1]

    def get(path: str) -> bytes:
        server.headers["Content-Encoding"] = "gzip"
        return b"\x1f\x8b" + b"0" * 1000

    server.get = get
    assert "encoded (Content-Encoding: gzip)" in failed(harness, OutputInvalid, "output_invalid")


def test_a_refused_connection_is_tried_again(harness, server, settings, monkeypatch) -> None:
    """A file server on another port of the same host is another origin; this is the server's own, gone."""
    port = free_port()
    answer(server, {"file": f"http://127.0.0.1:{port}/f"})
    monkeypatch.setattr(url_files.UrlFiles, "_is_own", lambda files, url: True)
    message = failed(harness, OutputNotStored, "output_not_stored", retried=True)
    assert "can't be reached" in message


@pytest.mark.parametrize("length", [2100, 40_000])
def test_a_url_that_is_too_long_is_not_asked_for(harness, server, length: int) -> None:
    answer(server, {"file": f"{server.url}/{'f' * length}"})
    server.get = lambda path: PNG
    assert "more than 2000 characters" in failed(harness, OutputInvalid, "output_invalid")
    assert [request for request, _ in server.seen if request.startswith("GET /f")] == []


def test_an_empty_file_is_refused(harness, server) -> None:
    answer(server, {"file": f"{server.url}/f"})
    serve(server, "/f", data=b"")
    assert "/file is empty" in failed(harness, OutputInvalid, "output_invalid")


def test_no_message_has_the_url(harness, server) -> None:
    answer(server, {"file": f"{server.url}/f?token=secret"})
    with_status(server, 404, path="/f?token=secret")
    message = failed(harness, OutputInvalid, "output_invalid")
    assert "secret" not in message
    assert "127.0.0.1" not in message
