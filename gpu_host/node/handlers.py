"""A node's handlers: models by the contract of `gpu_host.handlers`, all loaded while the node serves."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.log_lines import LogLine
from gpu_host import handlers
from gpu_host.handlers import BadInput, Cancelled
from gpu_host.handlers.code import ModelCode, find_models, import_source, names_several
from gpu_host.handlers.errors import ContractError
from gpu_host.local.run_output import LineCollector, OutputRouter, shared_rate
from gpu_host.node.config import ConfigError, check_name

log = logging.getLogger(__name__)


ROUTER = OutputRouter(adopts_threads=False)
"""Routes what the runs of this process print, while a node serves."""
_rate = shared_rate()


class RunOutput:
    """Receives a run's output: its log lines are kept for the dispatcher, and written to the node's log
    within the limits of a pinned worker.

    Progress is polled from the run's context. Partial output is dropped: the node's protocol can't carry it.
    on_lines: receives the lines.
    """

    def __init__(
        self, *, job_id: str, attempt_id: str, model: str, on_lines: Callable[[list[LogLine]], None]
    ) -> None:
        self._job_id, self._attempt_id, self._model = job_id, attempt_id, model
        self._on_lines = on_lines
        self.lines = LineCollector(self._take, _rate, batch_seconds=0.0)

    def __call__(self, kind: str, value: Any) -> None:
        if kind == "log":
            self.lines.log(value["text"], value["fields"])

    def _take(self, lines: list[LogLine]) -> None:
        self._on_lines(lines)
        with ROUTER.paused():  # the node's log may go to sys.stderr
            for line in lines:
                log.info(
                    "model_log job_id=%s attempt=%s model=%s stream=%s text=%s",
                    self._job_id,
                    self._attempt_id,
                    self._model,
                    line.stream,
                    json.dumps(line.text),  # JSON keeps it on one line
                )


class ModelLogging(logging.Handler):
    """Takes what the code of a run logs by `logging`, whose handlers here write to the node's log."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = ROUTER.current()
        if lines is not None:
            try:
                lines.log(self.format(record), {"level": record.levelname}, stream="stderr")
            except Exception:
                self.handleError(record)


_LOGGING = ModelLogging()


def capture_output() -> Callable[[], None]:
    """Collect what runs print and log in this process; return a function that ends it."""
    restore = ROUTER.install()
    logging.getLogger().addHandler(_LOGGING)  # once, also for a second node of the process

    def end() -> None:
        restore()
        if not ROUTER.is_installed:
            logging.getLogger().removeHandler(_LOGGING)

    return end


__all__ = ["BadInput", "Cancelled", "Handle", "Handler", "RunContext", "capture_output", "load_handlers"]

Handle = Callable[[Any, "RunContext"], Any]


class RunContext(handlers.RunContext):
    """A run's context on a node. fault: of a simulator, else None. on_lines: receives its log lines."""

    def __init__(
        self,
        *,
        model: str,
        job_id: str,
        attempt_id: str,
        fault: Mapping[str, Any] | None = None,
        output_dir: Path | None = None,
        on_lines: Callable[[list[LogLine]], None] = lambda lines: None,
    ) -> None:
        self._output = RunOutput(job_id=job_id, attempt_id=attempt_id, model=model, on_lines=on_lines)
        super().__init__(
            model_name=model,
            job_id=job_id,
            attempt_id=attempt_id,
            output_dir=output_dir,
            on_output=self._output,
        )
        self.fault = fault

    def collecting(self) -> AbstractContextManager[None]:
        """Collect what this thread prints as lines of the run."""
        return ROUTER.collecting(self._output.lines)


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
