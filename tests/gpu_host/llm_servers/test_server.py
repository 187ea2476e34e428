"""LLM servers beside in-process models: started for a job, stopped when idle, in one budget."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpu_host.handlers import Cancelled, RunContext
from gpu_host.handlers.errors import UpstreamError, failure_of
from gpu_host.llm_servers.declared import LlmServerConfig
from gpu_host.llm_servers.server import LlmServer as Cotenanted
from gpu_host.local.orders import error_of
from gpus.errors import (
    BadInput,
    ConnectFailed,
    GpuError,
    Interrupted,
    ModelMissing,
    RunFailed,
    RunTimedOut,
    ServerFailed,
    ServerLost,
    Verdict,
)
from tests.gpu_host.llm_servers.box import CHAT, Box
from tests.support.ports import free_port
from tests.support.servers.llm_server import WORDS, Behaviour, LlmServer
from tests.support.waiting import wait_for


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_starts_for_a_job_and_streams_text_beside_another_model(box: Box) -> None:
    box.open()
    assert box.notes("up") == [], "nothing runs before a job needs it"
    result = box.run("llama", CHAT)
    assert result["choices"][0]["message"]["content"] == "".join(WORDS)
    assert result["usage"]["total_tokens"] == 12
    wait_for(lambda: box.text == "".join(WORDS))
    box.run("llama", CHAT)
    assert len(box.notes("up")) == 1, "it is warm"
    box.run("a")
    assert box.gpu.warm() == ["llama", "a"], "both fit"


def test_a_server_stops_for_a_model_that_needs_its_memory_and_starts_again(box: Box) -> None:
    gpu = box.open(vram_mb=450)
    box.run("llama", CHAT)
    first = box.pid
    box.run("a")
    assert gpu.warm() == ["a"]
    assert box.notes("down") == ["down"], "the server got the signal to end"
    assert not is_there(first)
    box.run("llama", CHAT)
    assert gpu.warm() == ["llama"]
    assert box.pid != first


def test_an_idle_server_frees_its_memory(box: Box) -> None:
    gpu = box.open(warm_seconds=0.01)
    box.run("llama", CHAT)
    wait_for(lambda: gpu.tick() or "llama" not in gpu.warm())
    assert not is_there(box.pid)


def test_a_server_runs_as_many_jobs_as_its_slots_and_can_be_cancelled(box: Box) -> None:
    gpu = box.open("hang")
    threads = ThreadPoolExecutor(3)
    ends = [threads.submit(box.run, "llama", CHAT) for _ in range(3)]
    try:
        wait_for(lambda: len(gpu.running()) == 2 and box.text.count("Once") == 2)
        for attempt in [order.attempt for order in gpu.running()]:
            gpu.stop_run(attempt)
        wait_for(lambda: len(box.notes("hung up")) == 2)
        wait_for(lambda: box.text.count("Once") == 3)
        gpu.stop_run(gpu.running()[0].attempt)
        for end in ends:
            with pytest.raises(Interrupted):
                end.result(20)
        wait_for(lambda: len(box.notes("hung up")) == 3)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    assert gpu.spawned == 1, "no process was killed for it"


def test_a_server_that_died_is_restarted(box: Box) -> None:
    box.open()
    box.run("llama", CHAT)
    first = box.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: _is_over(first))
    assert box.run("llama", CHAT)["choices"]
    assert box.pid != first


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"nothing": 1}, BadInput),
        ({**CHAT, "model": "other"}, BadInput),
        ({"input": 1, "stream": True}, RunFailed),
    ],
)
def test_errors_keep_their_classes(box: Box, payload: Any, error: type[GpuError]) -> None:
    box.open()
    if error is RunFailed:
        payload = {**CHAT}
        box.open("hang", max_response_bytes=5)
    with pytest.raises(error):
        box.run("llama", payload)


@pytest.mark.parametrize("protocol", ["openai", "ollama"])
@pytest.mark.parametrize(
    ("does", "error"),
    [
        (Behaviour(cut_after=2), ServerLost),
        (Behaviour(status=500, body={"error": "boom"}), ServerFailed),
        (Behaviour(status=404, body={"error": "not found"}), ModelMissing),
        (Behaviour(hang_after=2), RunTimedOut),
        (None, ConnectFailed),
    ],
)
def test_a_servers_error_may_be_retried_elsewhere(
    protocol: str, does: Behaviour | None, error: type[GpuError]
) -> None:
    with LlmServer(does) as server:
        url = server.url + ("/v1" if protocol == "openai" else "")
        limit = 0.3 if error is RunTimedOut else 30.0
        handler = Cotenanted(LlmServerConfig("m", protocol, url, 1.0, max_run_seconds=limit))
        if does is None:
            server.__exit__()
        with pytest.raises(UpstreamError) as raised:
            handler.run(CHAT, RunContext())
    priced = error_of(failure_of(raised.value))
    assert type(priced) is error
    assert priced.blames in (Verdict.EITHER, Verdict.SERVER)
    assert priced.elsewhere
    assert not priced.suspect


def test_runs_that_wait_for_a_restarting_server_can_be_cancelled(tmp_path: Path) -> None:
    hangs, log, port = tmp_path / "hangs", tmp_path / "log", free_port()
    serve = f"{sys.executable} -m tests.gpu_host.llm_servers.fake_llm {port} 1 {log}"
    command = ("sh", "-c", f"[ -e {hangs} ] && exec sleep 600; exec {serve}")
    url = f"http://127.0.0.1:{port}/v1"
    handler = Cotenanted(LlmServerConfig("llama", "openai", url, 1.0, command=command, start_seconds=60.0))
    threads, said = ThreadPoolExecutor(2), list[str]()
    starts, waits = RunContext(on_output=lambda kind, value: said.append(kind)), RunContext()
    handler.load()
    try:
        hangs.touch()
        first = int(log.read_text().split()[1])
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: _is_over(first))
        one = threads.submit(handler.run, CHAT, starts)
        wait_for(lambda: "log" in said)
        other = threads.submit(handler.run, CHAT, waits)
        for ctx, end in ((waits, other), (starts, one)):
            ctx.cancel()
            with pytest.raises(Cancelled):
                end.result(10)
        hangs.unlink()
        assert handler.run(CHAT, RunContext())["choices"], "the next run starts it"
    finally:
        handler.unload()
        threads.shutdown(wait=False)


def test_a_server_that_does_not_start_reports_why(box: Box) -> None:
    box.open(command="false")
    with pytest.raises(RunFailed, match="ended with status 1"):
        box.run("llama", CHAT)
    assert box.run("a")["model"] == "a", "the others are not disturbed"


def test_a_server_does_not_outlive_its_worker(box: Box) -> None:
    gpu = box.open()
    box.run("llama", CHAT)
    gpu.stop()
    assert not is_there(box.pid)


def test_a_server_ends_with_its_process_even_if_the_warden_was_killed(box: Box) -> None:
    gpu = box.open()
    box.run("llama", CHAT)
    first = box.pid
    assert gpu.session is not None
    try:
        os.kill(gpu.session, signal.SIGKILL)
        wait_for(lambda: gpu.session is None)
        wait_for(lambda: not is_there(first) or _is_over(first))
        assert box.run("llama", CHAT)["choices"], "and the GPU goes on"
    finally:
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)


def _is_over(pid: int) -> bool:
    """Its parent may wait for it: all its threads have ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except FileNotFoundError:
        return True
