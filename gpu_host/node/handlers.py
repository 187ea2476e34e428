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
    """The log of one run, in the node's log; limited as on a pinned worker. Pollers read a run's progress
    from its context. Partial output is dropped here: the node's protocol cannot carry it."""

    def __init__(self, *, job_id: str, attempt_id: str, model: str) -> None:
        self._job_id, self._attempt_id, self._model = job_id, attempt_id, model
        self._limiter = OutputLimiter()

    def __call__(self, kind: str, value: Any) -> None:
        """Raises TypeError, ValueError for what is not JSON, as a pinned worker's does."""
        for let_kind, let_value in self._limiter.admit(kind, value, time.monotonic()):
            if let_kind == "log":
                log.info(
                    "model_log job_id=%s attempt=%s model=%s text=%s fields=%s",
                    self._job_id,
                    self._attempt_id,
                    self._model,
                    json.dumps(let_value["text"]),  # in one line, whatever it holds
                    json.dumps(let_value["fields"]),
                )


__all__ = ["BadInput", "Cancelled", "Handle", "Handler", "RunContext", "load_handlers"]

Handle = Callable[[Any, "RunContext"], Any]


class RunContext(handlers.RunContext):
    """fault: what a simulator was ordered to do wrong, else None."""

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
            tell=RunLogger(job_id=job_id, attempt_id=attempt_id, model=model),
        )
        self.fault = fault


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Handler:
    """simulates: it takes faults on order (`simulator.takes_faults`). load, unload: around its life."""

    model: str
    handle: Handle
    simulates: bool = False
    load: Callable[[], None] = _nothing
    unload: Callable[[], None] = _nothing


def load_handlers(path: str, *, model: str = "") -> list[Handler]:
    """Imports ``package.module`` or ``package.module:attribute``: one handler, or all that a module with
    ``MODELS`` names. Raises ConfigError with the reason."""
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
