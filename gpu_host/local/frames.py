"""What a model process says, read with distrust: model code can write to its pipe as it likes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from gpu_host.handlers.code import is_name
from gpu_host.handlers.declared import Declared, declared_by
from gpu_host.handlers.errors import MAX_TEXT, ContractError, Failure, storable
from gpu_host.local.output_limiter import MAX_FIELDS_BYTES, MAX_LOG_CHARS
from gpus.errors import MAX_TRACEBACK

RUN_FRAMES = frozenset({"ended", "heard"})
ANSWERS = frozenset({"ready", "loaded", "unloaded", "probed"})
MOST_MODELS = 1000
MAX_WHY = 2000
_CODE_CHARS = 64


class BadFrame(Exception):
    """No process that runs our code says that."""


def read_why(said: Any) -> str:
    """A reason in words, on one line."""
    return printable(_text(said, MAX_WHY))


def read_failure(said: Any) -> Failure | None:
    """None where the frame has none. Raises BadFrame."""
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise BadFrame("a failure that is no object")
    return Failure(
        code=_text(said.get("code"), _CODE_CHARS),
        text=_text(said.get("text"), MAX_TEXT),
        trace=_text(said.get("trace"), MAX_TRACEBACK),
        sticky=said.get("sticky") is True,
        unfinished=said.get("unfinished") is True,
    )


def read_event(kind: Any, value: Any) -> tuple[str, Any] | None:
    """What a run says of itself; None for what says nothing. Pieces of output are measured where they go."""
    if kind == "progress":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return ("progress", min(1.0, max(0.0, float(value)))) if is_number else None
    if kind == "partial":
        return "partial", value
    if kind == "log" and isinstance(value, Mapping):
        said = value.get("fields")
        known = said if isinstance(said, dict) and len(repr(said)) <= 2 * MAX_FIELDS_BYTES else {}
        return "log", {"text": printable(_text(value.get("text"), MAX_LOG_CHARS)), "fields": known}
    return None


def read_seconds(said: Any) -> float:
    """How long a load took. Raises BadFrame."""
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 <= said < math.inf:
        raise BadFrame("seconds that are no number")
    return float(said)


def read_models(said: Any) -> dict[str, Declared]:
    """By name. Raises BadFrame."""
    if not isinstance(said, list) or len(said) > MOST_MODELS:
        raise BadFrame("models that are no list")
    known = {field.name for field in fields(Declared)}
    found: dict[str, Declared] = {}
    for one in said:
        if not isinstance(one, Mapping) or set(one) != known or not is_name(one["name"]):
            raise BadFrame("a model that is none")
        attributes = {name: value for name, value in one.items() if name != "name"}
        attributes["min_resident"] = bool(one["min_resident"])
        try:
            found[one["name"]] = declared_by(one["name"], SimpleNamespace(**attributes))
        except (ContractError, TypeError) as error:
            raise BadFrame(str(error)) from error
    return found


def printable(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _text(said: Any, most: int) -> str:
    return storable(said)[:most] if isinstance(said, str) else ""
