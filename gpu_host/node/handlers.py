"""A node's handlers: models by the contract of `gpu_host.handlers`, all loaded while the node serves."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_host import handlers
from gpu_host.handlers import BadInput, Cancelled
from gpu_host.handlers.code import ModelCode, find_models, import_source, names_several
from gpu_host.handlers.errors import ContractError
from gpu_host.local.output_limiter import OutputLimiter
from gpu_host.node.config import ConfigError, check_name

log = logging.getLogger(__name__)


class RunLogger:
    """Writes a run's log lines to the node's log, with the limits of a pinned worker.

    Progress is polled from the run's context. Partial output is dropped: the node's protocol can't carry it.
    """

    def __init__(self, *, job_id: str, attempt_id: str, model: str) -> None:
        self._job_id, self._attempt_id, self._model = job_id, attempt_id, model
        self._limiter = OutputLimiter()

    def __call__(self, kind: str, value: Any) -> None:
        """Raises TypeError, ValueError for a value that is not JSON, like a pinned worker."""
        for item_kind, item_value in self._limiter.admit(kind, value, time.monotonic()):
            if item_kind == "log":
                log.info(
                    "model_log job_id=%s attempt=%s model=%s text=%s fields=%s",
                    self._job_id,
                    self._attempt_id,
                    self._model,
                    json.dumps(item_value["text"]),  # JSON keeps it on one line
                    json.dumps(item_value["fields"]),
                )


__all__ = ["BadInput", "Cancelled", "Handle", "Handler", "RunContext", "load_handlers"]

Handle = Callable[[Any, "RunContext"], Any]


class RunContext(handlers.RunContext):
    """A run's context on a node. fault: of a simulator, else None."""

    def __init__(
        self,
        *,
        model: str,
        job_id: str,
        attempt_id: str,
        fault: Mapping[str, Any] | None = None,
        output_dir: Path | None = None,
    ) -> None:
        super().__init__(
            model_name=model,
            job_id=job_id,
            attempt_id=attempt_id,
            output_dir=output_dir,
            on_output=RunLogger(job_id=job_id, attempt_id=attempt_id, model=model),
        )
        self.fault = fault


def _do_nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Handler:
    """A served model. handle: runs a payload. simulates: it simulates faults (`simulator.takes_faults`).
    load, unload: called when the node starts and stops."""

    model: str
    handle: Handle
    simulates: bool = False
    load: Callable[[], None] = _do_nothing
    unload: Callable[[], None] = _do_nothing


def load_handlers(path: str, *, model: str = "") -> list[Handler]:
    """Import ``package.module[:attribute]``; return one handler, or one per model of a module with
    ``MODELS``.

    Raises ConfigError with the reason."""
    try:
        source = import_source(path)
        if names_several(source):
            codes = list(find_models([f"{model}={path}" if model else path]).values())
            for code in codes:
                check_name(code.name)
        elif callable(getattr(source, "run", source)):
            codes = [ModelCode(model, source)]
        else:
            raise ContractError(f"{path!r} has no function run(payload, ctx)")
    except (ContractError, ConfigError) as error:
        raise ConfigError(f"handler {path!r}: {error}") from error
    return [_handler(code) for code in codes]


def _handler(code: ModelCode) -> Handler:
    simulates = bool(getattr(code.source, "takes_faults", False))
    return Handler(code.name, code.run, simulates, load=code.load, unload=code.unload)
