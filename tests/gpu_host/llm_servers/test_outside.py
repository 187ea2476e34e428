"""Servers whose memory is outside the model process: a systemd unit, and an Ollama that runs already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_host.local.device import Memory, RamGauge, pss_mb
from gpu_host.local.gpu import LocalGpu
from gpus.errors import DoesNotFit
from tests.gpu_host.llm_servers.box import CHAT, Box
from tests.support.ports import free_port
from tests.support.servers.llm_server import Behaviour, LlmServer
from tests.support.waiting import wait_for


class Unit:
    """A unit without systemd: a fake `systemctl` records its arguments, and ends the process that uses the
    unit's memory."""

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
            gpu._loaded.tainted = "it is"
            box.run("a")
        else:
            gpu.release_memory() if do == "drain" else gpu.stop()
        assert unit.said.read_text().splitlines()[:2] == ["start llama.service", "stop llama.service"]


@pytest.mark.parametrize("do", ["off", "stop"])
def test_a_unit_that_outlived_its_process_is_stopped(box: Box, unit: Unit, do: str) -> None:
    with LlmServer(Behaviour(models=("llama",))) as server:
        gpu = box.open(command="", unit="llama.service", url=f"{server.url}/v1")
        box.run("llama", CHAT)
        end_by_itself(gpu)
        assert unit.said.read_text() == "start llama.service\n", "it goes on"
        gpu.release_memory() if do == "off" else gpu.stop()
        assert unit.said.read_text().splitlines() == ["start llama.service", "stop llama.service"]
        assert gpu.session is None
        spawned = gpu.spawned
        gpu.release_memory()
        assert gpu.spawned == spawned, "once is enough"
        box.run("llama", CHAT)


def test_an_unreachable_server_is_not_unloaded_for_ever(box: Box, unit: Unit, tmp_path: Path) -> None:
    unit.hold(10)
    gpu = box.open(command="", unit="llama.service")
    end_by_itself(gpu)
    (tmp_path / "llms.toml").write_text("no file of servers any more")
    assert gpu.release_memory()
    assert gpu.spawned == 2
    assert gpu.release_memory()
    assert gpu.spawned == 2
    assert [event for event, _ in box.events][-1] == "unload_failed"


def test_without_outside_models_no_process_is_spawned_to_unload(tmp_path: Path) -> None:
    gpu = LocalGpu(
        ["tests.gpu_host.local.models"],
        gauge=RamGauge(),
        environment={"TEST_FOLDER": str(tmp_path)},
        output_root=tmp_path / "output",
    )
    gpu.start()
    end_by_itself(gpu)
    assert gpu.release_memory()
    assert gpu.spawned == 1


def end_by_itself(gpu: LocalGpu) -> None:
    """As a crash ends it."""
    assert gpu.session is not None
    os.killpg(gpu.session, signal.SIGKILL)
    wait_for(lambda: gpu.session is None)


def test_memory_of_a_unit_from_before_is_not_part_of_the_process(box: Box, unit: Unit) -> None:
    unit.hold(450)
    box.open(command="", unit="llama.service", gauge=RamGauge(extra=lambda: unit.pids))
    assert box.run("a")["model"] == "a", "it was stopped for that"
    assert box.gpu is not None
    assert box.gpu.spawned == 2
    assert unit.said.read_text().startswith("stop llama.service")


def test_a_unit_that_cannot_be_stopped_is_not_tried_for_ever(box: Box, unit: Unit) -> None:
    unit.hold(450)
    unit.program.write_text("#!/bin/sh\nexit 1\n")
    gpu = box.open(command="", unit="llama.service", gauge=RamGauge(extra=lambda: unit.pids))
    with pytest.raises(DoesNotFit):
        box.run("a")
    assert gpu.spawned == 2


class OllamasGauge:
    """A device of 600 MB with an Ollama server that is not known to be ours."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self, session: int | None) -> Memory:
        return Memory(600.0, RamGauge().read(session).own, pss_mb(self._pid))


def test_a_model_of_a_running_ollama_server_is_unloaded_for_another_model(box: Box) -> None:
    port = free_port()
    with subprocess.Popen(box.command(port, 420, "ollama")) as ollama:
        try:
            url = f"http://127.0.0.1:{port}"
            gauge = OllamasGauge(ollama.pid)
            gpu = box.open(command="", protocol="ollama", url=url, vram_mb=450, gauge=gauge)
            box.run("llama", CHAT)
            assert pss_mb(ollama.pid) > 420
            box.run("a")
            assert gpu.warm() == ["a"]
            assert pss_mb(ollama.pid) < 150, "the server was asked to unload the model"
            box.run("llama", CHAT)
            assert gpu.warm() == ["llama"]
            gpu.release_memory()
            assert pss_mb(ollama.pid) < 150
        finally:
            ollama.terminate()
