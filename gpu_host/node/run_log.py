"""Writes the log lines of a run on this node to the node's log.

Pollers read a run's progress from its context. Partial output is dropped here: the node's protocol cannot
carry it.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from gpu_host.local.output_limiter import OutputLimiter

log = logging.getLogger(__name__)


class RunLogger:
    """The log of one run; limited as on a pinned worker."""

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
