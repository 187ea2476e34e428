"""LLM servers beside in-process models: started for a job, stopped when idle, in one budget."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpus.cotenants.declared import FILE_VARIABLE, MODULE, Cotenant
from gpus.cotenants.server import LlmServer as Cotenanted
from gpus.errors import (
    BadInput,
    ConnectFailed,
    DoesNotFit,
    GpuError,
    Interrupted,
    ModelMissing,
    RunFailed,
    RunTimedOut,
    ServerFailed,
    ServerLost,
    Verdict,
)
from gpus.handlers import Cancelled, RunContext
from gpus.handlers.errors import LetDown, failure_of
from gpus.local.gpu import LocalGpu
from gpus.local.knobs import Knobs
from gpus.local.memory import Gauge, Memory, RamGauge, held_by
from gpus.local.orders import Order, error_of
from gpus.runners.base import Abort
from tests.gpus.node.caller import eventually
from tests.gpus.runners.llm_server import WORDS, Behaviour, LlmServer

CHAT = {"messages": [{"role": "user", "content": "Tell me"}], "stream": True}


class Box:
    """A worker's GPU (600 MB of RAM) with one LLM server of 150 MB and the models of `tests.gpus.local`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "server.log"
        self.log.touch()
        self.told: list[tuple[str, Any]] = []
        self.gpu: LocalGpu | None = None

    def command(self, port: int, mib: int, *does: str) -> list[str]:
        words = (sys.executable, "-m", "tests.gpus.cotenants.fake_llm", port, mib, self.log, *does)
        return [str(word) for word in words]

    def open(
        self, *does: str, command: str | None = None, gauge: Gauge | None = None, **more: Any
    ) -> LocalGpu:
        """command: another one; none at all if it is empty."""
        port = free_port()
        words = self.command(port, 150, *does)
        fields = {
            "protocol": "openai",
            "url": f"http://127.0.0.1:{port}/v1",
            "vram_mb": 200,
            "slots": 2,
            "start_seconds": 60,
            "command": words if command is None else [command],
            **more,
        }
        if command == "":
            del fields["command"]
        lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
        file = self.folder / "llms.toml"
        file.write_text("\n".join(["[llama]", *lines, ""]))
        self.gpu = LocalGpu(
            ["tests.gpus.local.models", MODULE],
            gauge=gauge or RamGauge(),
            environment={FILE_VARIABLE: str(file), "TEST_FOLDER": str(self.folder)},
            output_root=self.folder / "output",
            knobs=Knobs(budget_mb=600, back_seconds=5.0, back_mb=50, cancel_seconds=3.0, sample_seconds=0.0),
            hear=lambda order, kind, value: self.told.append((kind, value)),
        )
        self.gpu.start()
        return self.gpu

    def run(self, model: str, payload: Any = None, abort: Abort | None = None) -> Any:
        assert self.gpu is not None
        attempt = os.urandom(8).hex()
        return self.gpu.run(Order(attempt, f"job-{attempt}", model, payload, 60.0), abort or Abort())

    def notes(self, word: str) -> list[str]:
        return [line for line in self.log.read_text().splitlines() if line.startswith(word)]

    @property
    def pid(self) -> int:
        return int(self.notes("up")[-1].split()[1])

    @property
    def text(self) -> str:
        return "".join(value for kind, value in self.told if kind == "partial")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    if box.gpu is not None:
        box.gpu.stop()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_starts_for_a_job_and_tells_its_text_beside_a_model_of_the_workers_own(box: Box) -> None:
    box.open()
    assert box.notes("up") == [], "nothing runs before a job needs it"
    result = box.run("llama", CHAT)
    assert result["choices"][0]["message"]["content"] == "".join(WORDS)
    assert result["usage"]["total_tokens"] == 12
    eventually(lambda: box.text == "".join(WORDS))
    box.run("llama", CHAT)
    assert len(box.notes("up")) == 1, "it is warm"
    box.run("a")
    assert box.gpu.warm() == ["llama", "a"], "both fit"


def test_it_leaves_for_a_model_that_needs_its_room_and_comes_again(box: Box) -> None:
    gpu = box.open(vram_mb=450)
    box.run("llama", CHAT)
    first = box.pid
    box.run("a")
    assert gpu.warm() == ["a"]
    assert box.notes("down") == ["down"], "it was told to end"
    assert not is_there(first)
    box.run("llama", CHAT)
    assert gpu.warm() == ["llama"]
    assert box.pid != first


def test_idle_it_gives_its_memory_back(box: Box) -> None:
    gpu = box.open(warm_seconds=0.01)
    box.run("llama", CHAT)
    eventually(lambda: gpu.tick() or "llama" not in gpu.warm())
    assert not is_there(box.pid)


def test_it_runs_as_many_at_once_as_it_has_slots_and_a_cancel_reaches_it(box: Box) -> None:
    gpu = box.open("hang")
    threads = ThreadPoolExecutor(3)
    ends = [threads.submit(box.run, "llama", CHAT) for _ in range(3)]
    try:
        eventually(lambda: len(gpu.running()) == 2 and box.text.count("Once") == 2)
        for attempt in [order.attempt for order in gpu.running()]:
            gpu.stop_run(attempt)
        eventually(lambda: len(box.notes("hung up")) == 2)
        eventually(lambda: box.text.count("Once") == 3)
        gpu.stop_run(gpu.running()[0].attempt)
        for end in ends:
            with pytest.raises(Interrupted):
                end.result(20)
        eventually(lambda: len(box.notes("hung up")) == 3)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    assert gpu.spawned == 1, "nobody was killed for it"


def test_a_server_that_died_is_started_again(box: Box) -> None:
    box.open()
    box.run("llama", CHAT)
    first = box.pid
    os.kill(first, signal.SIGKILL)
    eventually(lambda: _is_over(first))
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
def test_what_its_server_did_wrong_is_not_the_models_fault_alone(
    protocol: str, does: Behaviour | None, error: type[GpuError]
) -> None:
    with LlmServer(does) as server:
        url = server.url + ("/v1" if protocol == "openai" else "")
        limit = 0.3 if error is RunTimedOut else 30.0
        handler = Cotenanted(Cotenant("m", protocol, url, 1.0, max_run_seconds=limit))
        if does is None:
            server.__exit__()
        with pytest.raises(LetDown) as raised:
            handler.run(CHAT, RunContext())
    priced = error_of(failure_of(raised.value))
    assert type(priced) is error
    assert priced.blames in (Verdict.EITHER, Verdict.SERVER)
    assert priced.elsewhere
    assert not priced.suspect


def test_a_cancel_reaches_runs_that_wait_for_a_server_that_is_started_again(tmp_path: Path) -> None:
    hangs, log, port = tmp_path / "hangs", tmp_path / "log", free_port()
    serve = f"{sys.executable} -m tests.gpus.cotenants.fake_llm {port} 1 {log}"
    command = ("sh", "-c", f"[ -e {hangs} ] && exec sleep 600; exec {serve}")
    url = f"http://127.0.0.1:{port}/v1"
    handler = Cotenanted(Cotenant("llama", "openai", url, 1.0, command=command, start_seconds=60.0))
    threads, said = ThreadPoolExecutor(2), list[str]()
    starts, waits = RunContext(tell=lambda kind, value: said.append(kind)), RunContext()
    handler.load()
    try:
        hangs.touch()
        first = int(log.read_text().split()[1])
        os.kill(first, signal.SIGKILL)
        eventually(lambda: _is_over(first))
        one = threads.submit(handler.run, CHAT, starts)
        eventually(lambda: "log" in said)
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


# -- what is held outside of the process -----------------------------------------------------------------


class Unit:
    """A unit of a systemd that is not here: a command of its name writes down what it is told, and ends the
    process that holds the unit's memory."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said, self.program = folder / "systemctl.log", folder / "bin" / "systemctl"
        self.said.touch()
        self.pids: list[int] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self.program.parent.mkdir()
        self.program.write_text(f'#!/bin/sh\necho "$*" >> {self.said}\n')
        self.program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{self.program.parent}:{os.environ['PATH']}")

    def hold(self, mib: int) -> None:
        """As an earlier worker left it."""
        code = f"b = bytearray(b'x') * ({mib} << 20); print(flush=True); import time; time.sleep(600)"
        holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        self._holders.append(holder)
        self.pids.append(holder.pid)
        assert holder.stdout is not None
        holder.stdout.readline()
        self.program.write_text(
            f'#!/bin/sh\necho "$*" >> {self.said}\n[ "$1" = stop ] && kill -9 {holder.pid}\nexit 0\n'
        )

    def end(self) -> None:
        for holder in self._holders:
            with holder:
                holder.kill()


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unit]:
    unit = Unit(tmp_path, monkeypatch)
    yield unit
    unit.end()


@pytest.mark.parametrize("do", ["drain", "stop", "replace"])
def test_a_unit_is_stopped_before_its_process_ends(box: Box, unit: Unit, do: str) -> None:
    with LlmServer(Behaviour(models=("llama",))) as server:
        gpu = box.open(command="", unit="llama.service", url=f"{server.url}/v1")
        box.run("llama", CHAT)
        assert unit.said.read_text() == "start llama.service\n"
        if do == "replace":
            gpu._shelf.tainted = "it is"
            box.run("a")
        else:
            gpu.rest() if do == "drain" else gpu.stop()
        assert unit.said.read_text().splitlines()[:2] == ["start llama.service", "stop llama.service"]


def test_what_a_unit_holds_from_before_is_no_part_of_the_process(box: Box, unit: Unit) -> None:
    unit.hold(450)
    box.open(command="", unit="llama.service", gauge=RamGauge(also=lambda: unit.pids))
    assert box.run("a")["model"] == "a", "it was stopped for that"
    assert box.gpu is not None
    assert box.gpu.spawned == 2
    assert unit.said.read_text().startswith("stop llama.service")


def test_a_unit_that_cannot_be_stopped_is_not_tried_for_ever(box: Box, unit: Unit) -> None:
    unit.hold(450)
    unit.program.write_text("#!/bin/sh\nexit 1\n")
    gpu = box.open(command="", unit="llama.service", gauge=RamGauge(also=lambda: unit.pids))
    with pytest.raises(DoesNotFit):
        box.run("a")
    assert gpu.spawned == 2


class OllamasGauge:
    """A device of 600 MB with an Ollama server on it that nobody knows to be ours."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self, session: int | None) -> Memory:
        return Memory(600.0, RamGauge().read(session).own, held_by(self._pid))


def test_an_ollama_server_that_runs_anyway_leaves_its_room_to_another_model(box: Box) -> None:
    port = free_port()
    with subprocess.Popen(box.command(port, 420, "ollama")) as ollama:
        try:
            url = f"http://127.0.0.1:{port}"
            gauge = OllamasGauge(ollama.pid)
            gpu = box.open(command="", protocol="ollama", url=url, vram_mb=450, gauge=gauge)
            box.run("llama", CHAT)
            assert held_by(ollama.pid) > 420
            box.run("a")
            assert gpu.warm() == ["a"]
            assert held_by(ollama.pid) < 150, "it was told to unload the model"
            box.run("llama", CHAT)
            assert gpu.warm() == ["llama"]
            gpu.rest()
            assert held_by(ollama.pid) < 150
        finally:
            ollama.terminate()


def test_a_server_that_does_not_come_up_says_why(box: Box) -> None:
    box.open(command="false")
    with pytest.raises(RunFailed, match="ended with status 1"):
        box.run("llama", CHAT)
    assert box.run("a")["model"] == "a", "the others are not disturbed"


def test_it_does_not_outlive_its_worker(box: Box) -> None:
    gpu = box.open()
    box.run("llama", CHAT)
    gpu.stop()
    assert not is_there(box.pid)


def test_it_ends_with_its_process_also_where_that_ones_warden_was_killed(box: Box) -> None:
    gpu = box.open()
    box.run("llama", CHAT)
    first = box.pid
    assert gpu.session is not None
    try:
        os.kill(gpu.session, signal.SIGKILL)
        eventually(lambda: gpu.session is None)
        assert not is_there(first) or _is_over(first)
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
