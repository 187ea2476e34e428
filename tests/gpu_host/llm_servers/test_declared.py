"""The operators' file of LLM servers: read, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_host.handlers.errors import ContractError
from gpu_host.llm_servers.declared import LlmServerConfig, read_file
from gpu_host.llm_servers.server import UnitProcesses
from gpu_host.local.device import RamGauge

GOOD = 'protocol = "openai"\nurl = "http://127.0.0.1:8001/v1"\nvram_mb = 100\n'


def test_a_server_is_a_table(tmp_path: Path) -> None:
    file = tmp_path / "llms.toml"
    file.write_text(f'[llama]\n{GOOD}command = ["serve", "llama"]\nslots = 8\n')
    (one,) = read_file(file)
    assert one == LlmServerConfig(
        "llama", "openai", "http://127.0.0.1:8001/v1", 100, command=("serve", "llama"), slots=8
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no server"),
        ("llama = 1", "is a table"),
        ("[llama", "llms.toml"),
        ("[llama]\nvram_mb = 1\n", "protocol, url is missing"),
        (f"[llama]\n{GOOD}ports = 1\n", "unknown ports"),
        (f"[llama]\n{GOOD.replace('openai', 'triton')}", "one of openai, ollama"),
        (f"[llama]\n{GOOD.replace('http:', 'ftp:')}", "http:// or https:// URL"),
        (f"[llama]\n{GOOD.replace('100', '-1')}", "number above 0"),
        (f"[llama]\n{GOOD}slots = 0\n", "whole number from 1"),
        (f"[llama]\n{GOOD}slots = {'9' * 5000}\n", "llms.toml"),
        (f"[llama]\n{GOOD}slots = -0x{'f' * 5000}\n", "llms.toml"),
        (f"[llama]\n{GOOD}start_seconds = [0x{'f' * 5000}]\n", "not a number of thousands of digits"),
        (f"[llama]\n{GOOD}command = {'[' * 5000}", "llms.toml"),
        (
            GOOD.replace("http://127.0.0.1:8001/v1", "http://[").join(("[llama]\n", "")),
            "http:// or https:// URL",
        ),
        (f"[llama]\n{GOOD}".replace('"openai"', "[]"), "one of openai, ollama"),
        (f"[llama]\n{GOOD}stop_seconds = 26\n", "stop_seconds is at most 25"),
        (f'[llama]\n{GOOD}command = "serve"\n', "list of words"),
        (f'[llama]\n{GOOD}command = ["serve"]\nunit = "llama"\n', "not both"),
        (f'[llama]\n{GOOD}min_resident = "yes"\n', "true or false"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "llms.toml"
    file.write_text(text)
    with pytest.raises(ContractError, match=words) as raised:
        read_file(file)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="No such file"):
        read_file(tmp_path / "none.toml")


def test_a_units_memory_counts_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd is not here: a command of its name says what it would say."""
    import os

    folder = tmp_path / "bin"
    folder.mkdir()
    systemctl = folder / "systemctl"
    systemctl.write_text('#!/bin/sh\n[ "$5" = "" ] && echo "/system.slice/$4"\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    group = tmp_path / "system.slice" / "vllm@llama.service" / "sub"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    units = UnitProcesses(["vllm@llama.service"], cgroups=tmp_path)
    assert set(units()) == {os.getpid()}
    with_it, without = RamGauge(extra=units).read(None), RamGauge().read(None)
    assert with_it.own > 10
    assert with_it.outside_session == with_it.own
    assert RamGauge(extra=units).read(os.getsid(0)).outside_session == 0, "it is of that session"
    assert without.own == 0
    assert set(UnitProcesses(["not-there.service"], cgroups=tmp_path)()) == set()
