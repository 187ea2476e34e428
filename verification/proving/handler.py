"""The handler of the trial's GPU servers: it sleeps; the result names its attempt. A file is fetched and
checked, also while the store is away for a while, and another one is saved."""

from __future__ import annotations

import hashlib
import time
import urllib.request
from typing import Any

from gpu_host.node.handlers import RunContext
from gpu_host.node.simulator import takes_faults
from verification.proving.files import output_of

FETCH_SECONDS = 40.0
"""Less than the limit of a run."""


@takes_faults
def run(payload: Any, ctx: RunContext) -> dict[str, Any]:
    """Sleep for the payload's seconds; return the attempt's id.

    file: URL of the payload's file, whose hash is sha256. output_bytes: of the file that is saved.
    result_chars: of a text in the result."""
    if "file" in payload:
        _check_file(payload["file"], payload["sha256"], ctx)
    ctx.wait(float(payload["seconds"]))
    result = {"number": payload["number"], "attempt": ctx.attempt_id}
    if size := int(payload.get("output_bytes", 0)):
        content = output_of(ctx.attempt_id, size)
        result |= {"output": ctx.save(content), "output_sha256": hashlib.sha256(content).hexdigest()}
    chars = int(payload.get("result_chars", 0))
    return {**result, "text": "x" * chars} if chars else result


def _check_file(url: str, sha256: str, ctx: RunContext) -> None:
    until = time.monotonic() + FETCH_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                content = answer.read()
        except OSError:  # the store is away, or the answer was cut off
            if time.monotonic() > until:
                raise
            ctx.wait(0.5)
            continue
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError(f"the file at {url.partition('?')[0]} has other bytes")
        return
