"""A node's handlers: models by the contract of `gpus.handlers`, all loaded while the node serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpus import handlers
from gpus.handlers import BadInput, Cancelled
from gpus.handlers.code import ModelCode, import_source
from gpus.handlers.errors import ContractError
from gpus.node.config import ConfigError

__all__ = ["BadInput", "Cancelled", "Handle", "Handler", "RunContext", "load_handler"]

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
        super().__init__(model_name=model, job_id=job_id, attempt_id=attempt_id, output_dir=output_dir)
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


def load_handler(path: str, *, model: str = "") -> Handler:
    """Imports ``package.module`` or ``package.module:attribute``. Raises ConfigError with the reason."""
    try:
        source = import_source(path)
        if not callable(getattr(source, "run", source)):
            raise ContractError(f"{path!r} has no function run(payload, ctx)")
        code = ModelCode(model, source)
    except ContractError as error:
        raise ConfigError(f"handler {path!r}: {error}") from error
    return Handler(
        model, code.run, bool(getattr(source, "takes_faults", False)), load=code.load, unload=code.unload
    )
