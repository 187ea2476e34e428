from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from foundation.json_text import PARSE_LOCK, JsonText
from gpus.errors import GpuError
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Accepted, Finished, Response, Runner, RunRequest
from gpus.runners.llm import parse_object
from gpus.runners.registry import runner_for, runner_names
from gpus.runners.transport import SMALL_VALUES, read_one_at_a_time
from tests.gpus.runners.posting import LONG
from tests.support.waiting import wait_for

NUMBERS = [100_000] * SMALL_VALUES
LARGE = json.dumps({"status": "succeeded", "result": NUMBERS, "output": NUMBERS}).encode()


def test_large_answers_are_read_one_at_a_time() -> None:
    entered, go = threading.Semaphore(0), threading.Event()

    def read() -> bool:
        entered.release()
        return go.wait(LONG)

    with ThreadPoolExecutor(5) as pool:
        reads = [pool.submit(read_one_at_a_time, LARGE, read) for _ in range(5)]
        try:
            assert entered.acquire(timeout=LONG)
            assert not entered.acquire(timeout=0.2), "a second one is read beside the first"
            assert read_one_at_a_time(b"[1]", lambda: "small") == "small"
            assert read_one_at_a_time(b'"' + b"x" * 10_000_000 + b'"', lambda: "a text") == "a text"
        finally:
            go.set()
        assert all(done.result(LONG) for done in reads)


def test_a_transaction_waits_for_one_large_answer_at_most() -> None:
    order, go = list[str](), threading.Event()
    first = threading.Event()

    def read() -> None:
        order.append("read")
        first.set()
        go.wait(LONG)

    def write() -> None:
        with PARSE_LOCK:
            order.append("write")

    with ThreadPoolExecutor(9) as pool:
        reads = [pool.submit(read_one_at_a_time, LARGE, read) for _ in range(8)]
        assert first.wait(LONG)
        wait_for(lambda: sum(done.running() for done in reads) == 8)
        written = pool.submit(write)
        try:
            wait_for(lambda: len(PARSE_LOCK._waiting) > 0)
        finally:
            go.set()
        for done in (*reads, written):
            done.result(LONG)
    assert order.index("write") == 1


def test_a_failed_large_answer_releases_its_turn() -> None:
    with pytest.raises(ZeroDivisionError):
        read_one_at_a_time(LARGE, lambda: 1 // 0)
    assert not PARSE_LOCK._is_taken
    assert read_one_at_a_time(LARGE, lambda: "read") == "read"


def test_a_large_result_is_kept_as_text() -> None:
    outcome = read_one_at_a_time(LARGE, lambda: Finished([1, "é"], {"tokens": 2}))
    assert outcome == Finished(JsonText('[1,"\\u00e9"]'), {"tokens": 2})
    assert read_one_at_a_time(LARGE, lambda: Accepted("r1")) == Accepted("r1")


def test_an_error_keeps_no_values() -> None:
    class Values(list[int]):
        pass

    seen: list[weakref.ref[Values]] = []

    def deeper(values: Values) -> None:
        raise ValueError(f"{len(values)} values")

    def read() -> None:
        values = Values([1])
        seen.append(weakref.ref(values))
        try:
            deeper(values)
        except ValueError as error:
            raise GpuError("no") from error

    with pytest.raises(GpuError) as caught:
        read_one_at_a_time(LARGE, read)
    assert caught.value.__cause__ is not None
    assert seen[0]() is None


class Says:
    """A transport whose every answer is the same."""

    def __init__(self, body: bytes, status: int) -> None:
        self._response = Response(status, {}, body)

    def request(self, *asked: Any, **options: Any) -> Response:
        return self._response


def asked(kind: str, status: int) -> tuple[Runner, RunRequest]:
    spec = ModelSpec("m", "m", model_type=kind, poll_endpoint_template="/status/{id}")
    endpoint = Endpoint("gpu-1", "http://127.0.0.1:1/v1/embeddings" if kind == "openai" else "http://gpu")
    run = RunRequest("job", "attempt", spec, endpoint, {"input": "a", "messages": []}, "gpu-1/0", 1)
    return runner_for(spec, Says(LARGE, status)), run


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("kind", runner_names())
def test_every_runner_reads_large_answers_in_turn(kind: str, status: int) -> None:
    """The body is no answer of some protocols: it is refused in turn, too."""
    runner, run = asked(kind, status)

    def start() -> None:
        with suppress(GpuError):
            runner.start(run, abort=Abort())

    assert waits_for_its_turn(start)


def test_a_large_poll_answer_is_read_one_at_a_time() -> None:
    runner, run = asked("async", 200)
    assert isinstance(runner.poll(run, "r1", abort=Abort()).result, JsonText)  # type: ignore[union-attr]


def test_a_large_piece_of_a_stream_is_read_one_at_a_time() -> None:
    assert waits_for_its_turn(lambda: parse_object(LARGE))


def waits_for_its_turn(ask: Callable[[], Any]) -> bool:
    with ThreadPoolExecutor(1) as pool:
        with PARSE_LOCK:
            asked = pool.submit(ask)
            wait_for(lambda: asked.done() or bool(PARSE_LOCK._waiting))
            waited = not asked.done()
        asked.result(LONG)
    return waited
