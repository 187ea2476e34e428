"""Files of a run on a node, put into a dispatcher's store over HTTP."""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_host.handlers.context import LONGEST_PAUSE_SECONDS, RunContext
from gpu_host.node import outputs
from gpus.errors import OutputNotStored, OutputRefused
from tests.support.servers.handlers import QuietHandler, serve_handler
from tests.support.waiting import wait_for

SAVES = "tests.gpu_host.node.custom_handlers:saves"
SIMULATOR = "gpu_host.node.simulator:run"


TIMEOUT = b"<Error><Code>RequestTimeout</Code></Error>"
"""S3's answer to a body that came too slowly."""


class Store:
    """A dispatcher and its store. fails: statuses of the next answers, also with a body. retry_after: header
    of all answers. film: the bytes of each GET."""

    def __init__(self) -> None:
        self.url = ""
        self.film = b""
        self.fails: list[int | tuple[int, bytes]] = []
        self.retry_after = ""
        self.promised: list[tuple[str, Any]] = []
        self.stored: list[bytes] = []
        self.exists = False


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()

    class Route(QuietHandler):
        def answer(self, status: int, body: bytes = b"") -> None:
            if store.fails:
                failed = store.fails.pop(0)
                status, body = failed if isinstance(failed, tuple) else (failed, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if store.retry_after:
                self.send_header("Retry-After", store.retry_after)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            store.promised.append((self.headers["Authorization"], wanted))
            upload = {"method": "PUT", "url": f"{store.url}/object", "headers": {"X-Bound": "1"}}
            answer = {"id": "ART", "exists": store.exists, "upload": None if store.exists else upload}
            self.answer(201, json.dumps(answer).encode())

        def do_GET(self) -> None:
            self.answer(200, store.film)

        def do_PUT(self) -> None:
            assert self.headers["X-Bound"] == "1"
            assert self.headers["Authorization"] is None
            store.stored.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer(201)

    with serve_handler(Route) as store.url:
        yield store


def dispatch_answer(node: Any, store: Store) -> Any:
    return node.dispatch(
        "grüße",
        X_Job_Id="j",
        X_Artifact_Url=f"{store.url}/promise",
        X_Callback_Token="t0ken",
        Idempotency_Key="a-1",
    )


def dispatch(node: Any, store: Store) -> Any:
    return dispatch_answer(node, store).body


@pytest.mark.parametrize(
    "fails",
    [[], [503], [507], [201, 500], [201, 507], [201, 409], [201, (400, TIMEOUT)], [201, 503, 201, 409]],
)
def test_a_saved_file_is_promised_sent_and_named(start, store, monkeypatch, fails) -> None:
    monkeypatch.setattr(RunContext, "wait", lambda *_: None)
    store.fails = fails
    answer = dispatch(start(handler=SAVES), store)
    assert answer == {"status": "success", "result": {"file": {"$artifact": "ART"}}}
    data = "grüße".encode()
    token, wanted = store.promised[-1]
    assert token == "Bearer t0ken"
    assert wanted == {
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "name": "ä.txt",
        "content_type": "text/plain",
    }
    assert store.stored[-1] == data


def test_a_file_that_the_store_has_is_not_sent(start, store) -> None:
    store.exists = True
    assert dispatch(start(handler=SAVES), store)["result"] == {"file": {"$artifact": "ART"}}
    assert store.stored == []


def test_the_simulator_returns_a_film_with_a_box_of_its_tag_at_the_end(start, store) -> None:
    store.film = bytes(range(256)) * 8192
    node = start(handler=SIMULATOR)
    film = {"video": f"{store.url}/a/1/{hashlib.sha256(store.film).hexdigest()}", "seconds": 0}
    headers = {"X_Artifact_Url": f"{store.url}/promise", "X_Callback_Token": "t0ken"}
    result = node.dispatch({**film, "retag": "grüße"}, Idempotency_Key="a-1", **headers).body["result"]
    assert result["video"] == {"$artifact": "ART"}
    assert store.promised[-1][1]["content_type"] == "video/mp4"
    tag = "grüße".encode()
    assert store.stored == [store.film + (8 + len(tag)).to_bytes(4, "big") + b"free" + tag]
    assert "video" not in node.dispatch(film, Idempotency_Key="a-2", **headers).body["result"]
    for wrong in ({"retag": 1}, {"retag": "x" * 1001}, {"retag": "x", "video": "film.mp4"}):
        answer = node.dispatch({**film, **wrong}, Idempotency_Key=str(wrong)[:40], **headers).body
        assert (answer["status"], answer["error_code"]) == ("failed", "bad_input")


@pytest.mark.parametrize(("fails", "status"), [([413], 413), ([429], 429), ([409], 409), ([201, 400], 400)])
def test_a_refusal_fails_the_run_with_its_reason(start, store, fails, status) -> None:
    store.fails = fails
    answer = dispatch(start(handler=SAVES), store)
    assert (answer["status"], answer["error_code"]) == ("failed", "output_refused")
    assert f"refused ({status})" in answer["error"]
    assert len(store.promised) == 1


def test_a_limit_that_may_pass_is_waited_for(start, store) -> None:
    store.fails, store.retry_after = [429], "60"
    assert dispatch(start(handler=SAVES), store)["status"] == "success"


def saved(monkeypatch: pytest.MonkeyPatch, *, away_seconds: float) -> tuple[Any, list[float]]:
    """Save a file while its store is away for so long, in virtual time; return the value and the pauses."""
    now, pauses = [0.0], []

    def request(*_: Any) -> Any:
        if now[0] < away_seconds:
            raise ConnectionRefusedError("connection refused")
        return outputs._Answer(200, b'{"id": "ART", "exists": true}', may_repeat=False)

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(outputs, "_request", request)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    order = SimpleNamespace(artifact_url="http://127.0.0.1:9/", callback_token="t")
    run: Any = SimpleNamespace(order=order, context=SimpleNamespace(wait=wait))
    with tempfile.TemporaryFile("rb+", buffering=0) as file:
        return outputs._Uploads(run).save(file), pauses  # type: ignore[arg-type]


def test_a_store_may_be_away_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    value, pauses = saved(monkeypatch, away_seconds=55.0)
    assert value == {"$artifact": "ART"}
    assert max(pauses) == LONGEST_PAUSE_SECONDS
    with pytest.raises(OutputNotStored, match="connection refused"):
        saved(monkeypatch, away_seconds=100.0)


def test_a_run_that_is_cancelled_waits_for_no_store(start, store) -> None:
    store.fails = [503] * 1000
    node = start(handler=SAVES)
    answer = node.later(dispatch_answer, node, store)
    wait_for(lambda: bool(store.promised))
    node.ask("POST", "/cancel/j")
    assert answer.result().body["error_code"] == "cancelled"


def test_a_caller_that_takes_no_files_gets_a_failure(start) -> None:
    answer = start(handler=SAVES).dispatch("x").body
    assert answer["status"] == "failed"
    assert "X-Artifact-Url" in answer["error"]


class Growing(io.FileIO):
    """A file that has more bytes with each read."""

    def read(self, size: int = -1) -> bytes:
        return b"x" * 100


def test_a_file_that_grows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * 250)
    order = SimpleNamespace(artifact_url="http://127.0.0.1:9/", callback_token="t")
    run: Any = SimpleNamespace(order=order, context=SimpleNamespace(wait=lambda _: None))
    with Growing(tmp_path / "log") as file, pytest.raises(OutputRefused, match="grew"):
        outputs._Uploads(run).save(file)  # type: ignore[arg-type]
