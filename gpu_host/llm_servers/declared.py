"""Configuration of the LLM servers that may run on a machine: a TOML file with one table per model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_host.handlers.errors import ContractError
from gpus.runners.ollama_http import OllamaRunner
from gpus.runners.openai_http import OpenAiRunner

FILE_VARIABLE = "LLM_SERVERS_FILE"
"""Environment variable of the model process: the path of the file."""
MODULE = "gpu_host.llm_servers.configured"
PROTOCOLS = (OpenAiRunner.name, OllamaRunner.name)

MAX_STOP_SECONDS = 25.0
"""Twice this (SIGTERM, then SIGKILL) is less than the limit of an unload, after which the process is
replaced."""


@dataclass(frozen=True, slots=True)
class LlmServerConfig:
    """One server. url: where it serves. command: starts it; unit: systemd starts it; neither: it runs
    already.

    slots: its concurrent runs. start_seconds: time until it must answer. The others as in `Declared` and
    `ModelSpec`."""

    name: str
    protocol: str
    url: str
    vram_mb: float
    command: tuple[str, ...] = ()
    unit: str = ""
    slots: int = 1
    start_seconds: float = 600.0
    stop_seconds: float = 15.0
    warm_seconds: float = 300.0
    min_resident: bool = False
    max_run_seconds: float | None = None
    remote_model: str | None = None
    max_response_bytes: int = 16 * 1024 * 1024


_SHOWN_CHARACTERS = 200
_NUMBERS = {"vram_mb", "start_seconds", "stop_seconds", "warm_seconds", "max_run_seconds"}
_TEXTS = {"protocol", "url", "unit", "remote_model"}
_COUNTS = {"slots", "max_response_bytes"}


def read_file(path: Path) -> list[LlmServerConfig]:
    """Return the servers in the file. Raises ContractError with a message of one line."""
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:  # ValueError also for overlong numbers
        raise ContractError(f"{path}: {error}") from None
    if not tables:
        raise ContractError(f"{path} names no server: one table per model, as in [llama]")
    return [_read(f"{path}: [{name}]", name, table) for name, table in tables.items()]


def _read(where: str, name: str, table: Any) -> LlmServerConfig:
    if not isinstance(table, Mapping):
        raise ContractError(f"{where} is a table")
    known = {field.name: field for field in fields(LlmServerConfig) if field.name != "name"}
    if unknown := sorted(set(table) - set(known)):
        raise ContractError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(known)}")
    missing = [key for key, field in known.items() if field.default is MISSING and key not in table]
    if missing:
        raise ContractError(f"{where}: {', '.join(missing)} is missing")
    for key, value in table.items():
        if why := _error_of(key, value):
            raise ContractError(f"{where}: {key} {why}, not {_shown(value)}")
    if table.get("command") and table.get("unit"):
        raise ContractError(f"{where}: command or unit, not both")
    return LlmServerConfig(name, **{**table, "command": tuple(table.get("command", ()))})


def _error_of(key: str, value: Any) -> str:
    if key == "protocol" and not (isinstance(value, str) and value in PROTOCOLS):
        return f"is one of {', '.join(PROTOCOLS)}"
    if key == "command":
        is_command = isinstance(value, list) and value and all(isinstance(part, str) for part in value)
        return "" if is_command else "is a list of words"
    if key in _TEXTS and not (isinstance(value, str) and value):
        return "is a text"
    if key == "url" and not _is_url(value):
        return "is an http:// or https:// URL"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _NUMBERS and not (is_number and value > 0):
        return "is a number above 0"
    if key == "stop_seconds" and value > MAX_STOP_SECONDS:
        return f"is at most {MAX_STOP_SECONDS:.0f}"
    if key in _COUNTS and not (is_number and isinstance(value, int) and value >= 1):
        return "is a whole number from 1"
    if key == "min_resident" and not isinstance(value, bool):
        return "is true or false"
    return ""


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_SHOWN_CHARACTERS]
    except ValueError:  # Python formats no number of more than 4,300 digits
        return "a number of thousands of digits"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # as of `http://[`
        return False
