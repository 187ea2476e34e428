"""Slow and missing bodies over real sockets to the real web process: no thread waits for them."""

from __future__ import annotations

import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import requests
from django.utils import timezone

from dispatcher_project.web import request_limits
from dispatcher_project.wiring import WSGI_THREADS
from foundation.ids import new_id
from foundation.secrets import signed
from gpus.models import ModelConfig
from jobs.execution.pushed_results import PUSH_TOKEN
from jobs.models import Job, PushedResult
from tests.support.api_harness import Account
from tests.support.factories import make_job
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web
from tests.support.upload_sockets import BATCH, JOB, MB, SUBMIT, Sockets, answer_of, bearer, sockets

__all__ = ["redis_url", "sockets", "tenant", "web"]
LONG = 300_000


def callback(model: str = "zimg") -> str:
    """Return the push URL of a job; its attempt may have no row yet."""
    return f"/api/v1/tasks/callback/{make_job(model, at=timezone.now()).id}"


@pytest.fixture
def bounds(settings: Any) -> Callable[..., None]:
    def change(**seconds: float) -> None:
        settings.DISPATCHER = settings.DISPATCHER.__class__(**seconds)

    return change


@pytest.mark.parametrize("sender", ["no client", "a wrong token", "a token", "a key", "a form"])
def test_silent_clients_block_no_thread(web: Web, tenant: Account, sockets: Sockets, sender: str) -> None:
    for _ in range(WSGI_THREADS + 4):
        match sender:
            case "no client":
                sockets.begin(BATCH, LONG)
            case "a wrong token":
                sockets.begin(callback(), LONG, X_Callback_Token="x.y")
            case "a token":
                sockets.begin(callback(), LONG, X_Callback_Token=signed(new_id(), purpose=PUSH_TOKEN))
            case "a key":
                sockets.begin(BATCH, LONG, **bearer(tenant))
            case "a form":  # whose CSRF token would be in the body
                form = "application/x-www-form-urlencoded"
                sockets.begin("/admin/login/", LONG, Content_Type=form, Cookie=f"csrftoken={'x' * 32}")
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=bearer(tenant), timeout=60)
    assert answer.status_code == 202


def test_a_stalled_upload_is_answered_with_an_error(
    tenant: Account, sockets: Sockets, bounds: Callable[..., None]
) -> None:
    bounds(upload_idle_seconds=0.3)
    connection = sockets.begin(SUBMIT, 100, **bearer(tenant))
    connection.sendall(b"{")
    assert answer_of(connection) == (408, "upload_too_slow")
    long = sockets.begin(BATCH, LONG, **bearer(tenant))
    assert answer_of(long) == (408, "upload_too_slow")


def test_a_full_disk_is_reported_and_small_requests_continue(
    tenant: Account, web: Web, sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # writing there fails as on a full disk
    batch = {"jobs": [{"model": "zimg", "payload": {"text": "x" * 900_000}}] * 3}
    answer = requests.post(web.url + BATCH, json=batch, headers=bearer(tenant), timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (503, "no_room_for_body")
    assert int(answer.headers["Retry-After"]) > 0
    small = requests.post(web.url + SUBMIT, json=JOB, headers=bearer(tenant), timeout=60)
    assert small.status_code == 202


def test_a_slow_trickle_of_bytes_is_ended(
    tenant: Account, sockets: Sockets, bounds: Callable[..., None]
) -> None:
    bounds(upload_idle_seconds=5.0, upload_seconds=0.5)
    connection = sockets.begin(BATCH, LONG, **bearer(tenant))
    began = time.monotonic()
    connection.settimeout(0.05)
    result = b""
    while not result and time.monotonic() < began + 10:
        with suppress(ConnectionError):  # the response may have arrived before the connection was closed
            connection.sendall(b" ")
        try:
            result = connection.recv(65536)
        except TimeoutError:
            continue
    assert result.split()[1] == b"408"


def test_a_push_without_a_valid_token_is_refused_unread(
    sockets: Sockets, bounds: Callable[..., None]
) -> None:
    bounds(upload_idle_seconds=0.3)
    connection = sockets.begin(callback(), 30_000_000, X_Callback_Token="x.y", Connection="close")
    assert answer_of(connection) == (401, "invalid_push_token")


def test_a_push_that_may_not_be_stored_is_refused_unread(
    tenant: Account, sockets: Sockets, bounds: Callable[..., None]
) -> None:
    """20 MB with the token of an ended attempt, and 20 MB for a model with a limit of 1,000 bytes."""
    bounds(upload_idle_seconds=0.3)
    ModelConfig.objects.filter(name="zimg").update(max_response_bytes=1000)
    path = callback()
    live = sockets.begin(
        path, 20_000_000, X_Callback_Token=signed(new_id(), purpose=PUSH_TOKEN), Connection="close"
    )
    assert answer_of(live) == (413, "payload_too_large")
    Job.objects.update(state="completed", finished_at=timezone.now())
    over = sockets.begin(
        path, 20_000_000, X_Callback_Token=signed(new_id(), purpose=PUSH_TOKEN), Connection="close"
    )
    assert answer_of(over) == (409, "attempt_over")
    assert not PushedResult.objects.exists()


def test_a_body_that_is_too_long_is_refused_unread(
    tenant: Account, sockets: Sockets, bounds: Callable[..., None]
) -> None:
    bounds(upload_idle_seconds=0.3)
    for path, code in ((SUBMIT, "payload_too_large"), (BATCH, "payload_too_large")):
        connection = sockets.begin(path, 40_000_000, Connection="close", **bearer(tenant))
        assert answer_of(connection) == (413, code)
    form = sockets.begin("/admin/login/", 40_000_000, Content_Type="multipart/form-data; boundary=x")
    assert answer_of(form) == (413, "payload_too_large")


@pytest.mark.parametrize(("megabytes", "authorized"), [(8, True), (30, True), (8, False)])
def test_a_body_that_is_too_long_gets_its_response_before_the_connection_closes(
    web: Web, tenant: Account, megabytes: int, authorized: bool
) -> None:
    request = urllib.request.Request(  # sends Connection: close, and reads only after sending everything
        web.url + SUBMIT,
        data=b"x" * (megabytes * MB),
        headers={"Content-Type": "application/json", **(bearer(tenant) if authorized else {})},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value as answer:
        code = "payload_too_large" if authorized else "not_authenticated"
        assert (answer.code, json.load(answer)["code"]) == (413 if authorized else 401, code)


def test_a_refused_body_is_read_up_to_a_limit(
    tenant: Account, sockets: Sockets, bounds: Callable[..., None]
) -> None:
    bounds(refused_body_bytes=MB)
    connection = sockets.begin(SUBMIT, 1000 * MB, Connection="close", **bearer(tenant))
    sent = 0
    with suppress(OSError):
        while sent < 200 * MB:
            sent += connection.send(b"x" * MB)
    assert sent < 100 * MB, "reset"


def test_a_disconnected_client_gets_no_job(web: Web, tenant: Account, sockets: Sockets) -> None:
    body = json.dumps(JOB).encode()
    connection = sockets.begin(SUBMIT, len(body) + 1, **bearer(tenant))
    connection.sendall(body)
    connection.close()
    answer = requests.post(web.url + SUBMIT, json=JOB, headers=bearer(tenant), timeout=60)
    assert answer.status_code == 202
    assert Job.objects.count() == 1


@pytest.mark.parametrize("size", [LONG, 3_500_000])
def test_a_long_push_arrives_whole(web: Web, tenant: Account, size: int) -> None:
    attempt = new_id()
    body = {"status": "success", "result": "".join(f"{n:08d}" for n in range(size // 8))}
    headers = {"X-Callback-Token": signed(attempt, purpose=PUSH_TOKEN)}
    answer = requests.post(web.url + callback(), json=body, headers=headers, timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"accepted": True})
    assert PushedResult.objects.get(attempt_id=attempt).body == body


def test_a_long_submit_is_one_job(web: Web, tenant: Account) -> None:
    job = JOB | {"payload": {"text": "x" * LONG}}
    answer = requests.post(web.url + SUBMIT, json=job, headers=bearer(tenant), timeout=60)
    assert answer.status_code == 202
    assert Job.objects.get().payload == job["payload"]


def test_a_chunked_body_is_bounded(web: Web, tenant: Account, sockets: Sockets) -> None:
    connection = sockets.begin(SUBMIT, None, Transfer_Encoding="chunked", **bearer(tenant))
    with suppress(OSError):
        for _ in range(3):
            connection.sendall(b"100000\r\n" + b" " * MB + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
    connection.settimeout(30)
    assert connection.recv(65536).split()[1] == b"413"


def test_a_slow_disk_for_long_bodies_delays_no_other_request(
    web: Web, tenant: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes and reads of a body in a file wait for the disk; the event loop answers others meanwhile."""
    waits, go_on = threading.Semaphore(0), threading.Semaphore(0)

    class SlowDisk(tempfile.SpooledTemporaryFile[bytes]):
        def write(self, data: Any) -> int:
            if self.tell() + len(data) > MB:
                waits.release()
                assert go_on.acquire(timeout=60)
            return super().write(data)

        def read(self, *args: int) -> bytes:
            if self._rolled:  # type: ignore[attr-defined]
                waits.release()
                assert go_on.acquire(timeout=60)
            return super().read(*args)

    monkeypatch.setattr(request_limits, "SpooledTemporaryFile", SlowDisk)
    body = json.dumps({"jobs": [{"model": "zimg", "payload": {"a": "x" * 700_000}} for _ in range(3)]})
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(
            requests.post,
            web.url + BATCH,
            data=body,
            headers={"Content-Type": "application/json", **bearer(tenant)},
            timeout=60,
        )
        seen = 0
        while not sent.done():
            if waits.acquire(timeout=0.05):
                seen += 1
                assert requests.get(f"{web.url}/livez", timeout=10).status_code == 200
                go_on.release()
        assert sent.result().status_code == 202, sent.result().text
    assert seen >= 4  # two writes and two reads
