"""The model of the trial's pinned worker: it saves a file that the worker writes to the store in parts.

Its log is that of a node (`gpu_host/node/runs.py`), as far as the judge reads it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import Any

from gpu_host.handlers import RunContext
from verification.proving.files import output_of

MODEL = "film"
PINNED = "pinned"
"""Suffix of the server's name."""


class Film:
    """Saves a file by `ctx.save`, or in `ctx.output_dir`; the result may be long.

    Payload: number, seconds, log (path of the log), server, output_bytes, result_chars."""

    vram_mb = 16

    def __init__(self) -> None:
        self._has_booted = False

    def run(self, payload: Any, ctx: RunContext) -> dict[str, Any]:
        run: dict[str, Any] = {
            "run": ctx.attempt_id,
            "job": ctx.job_id,
            "attempt": ctx.attempt_id,
            "source": "dispatcher",
            "slot": f"{payload['server']}/0",
            "fence": None,
            "started": time.time(),
        }
        if not self._has_booted:
            self._has_booted = True
            _write(payload["log"], {"what": "boot", "at": time.time()})
        _write(payload["log"], {"what": "began", **run})
        outcome = "error"
        try:
            result = self._make(payload, ctx)
            outcome = "success"
            return result
        finally:
            _write(payload["log"], {"what": "ended", **run, "ended": time.time(), "outcome": outcome})

    def _make(self, payload: Any, ctx: RunContext) -> dict[str, Any]:
        ctx.wait(float(payload["seconds"]))
        content = output_of(ctx.attempt_id, int(payload["output_bytes"]))
        result = {"number": payload["number"], "attempt": ctx.attempt_id}
        result["output_sha256"] = hashlib.sha256(content).hexdigest()
        if payload["number"] % 2:
            result["output"] = ctx.save(content, name="film.bin")
        else:
            path = ctx.output_dir / "film.bin"
            path.write_bytes(content)
            result["output"] = str(path)
        chars = int(payload.get("result_chars", 0))
        return {**result, "text": "x" * chars} if chars else result


def _write(path: str, line: dict[str, Any]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


MODELS = {f"prove-{MODEL}": Film}
