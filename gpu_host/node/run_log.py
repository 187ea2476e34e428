"""What a run on this node says of itself while it runs: its lines go to the node's log.

Progress is read from its context by whoever polls it. Pieces of output before the end have no way to the
caller here: the protocol has none, and they are dropped.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from gpu_host.local.output_limiter import Faucet

log = logging.getLogger(__name__)


class Words:
    """Of one run; as much a second as a pinned worker lets through."""

    def __init__(self, *, job_id: str, attempt_id: str, model: str) -> None:
        self._job_id, self._attempt_id, self._model = job_id, attempt_id, model
        self._faucet = Faucet()

    def __call__(self, kind: str, value: Any) -> None:
        """Raises TypeError, ValueError for what is not JSON, as a pinned worker's does."""
        for let_kind, let_value in self._faucet.let(kind, value, time.monotonic()):
            if let_kind == "log":
                log.info(
                    "model_log job_id=%s attempt=%s model=%s text=%s fields=%s",
                    self._job_id,
                    self._attempt_id,
                    self._model,
                    json.dumps(let_value["text"]),  # in one line, whatever it holds
                    json.dumps(let_value["fields"]),
                )
