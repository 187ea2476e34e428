"""The artifacts of the load: some jobs take a file, whose bytes follow from the seed and the job's number,
and save one, whose bytes follow from the attempt."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from typing import Any

from dispatcher_client import DispatcherError, Problem, Unavailable
from verification.proving.clients import WatchedClient

SHARE = 0.08
"""Share of jobs with a file."""
MOST_BYTES = 64 * 1024
PARTS_ABOVE_BYTES = MOST_BYTES // 2
"""In place of the client's own limit: half of the files go in parts, and each such small one is one part. So
the store's faults also meet the begin of an upload, its parts and its completion."""
BIG_BYTES = 65 * 1024 * 1024
"""Of a big file: two real parts."""
OUTPUT_BYTES, BIG_OUTPUT_BYTES = 100_000, 8 * 1024 * 1024
"""Of the file that a job with a file saves: by a signed PUT of its GPU server."""
WORKER_OUTPUT_BYTES, WORKER_RESULT_CHARS = 12_000_000, 6_000_000
"""Of a file, and of a long result, that the pinned worker writes to the store: three and two parts of
`PART_BYTES`."""
PART_BYTES = 5 * 1024 * 1024
"""Of the trial's own system (DISPATCHER_ARTIFACT_PART_BYTES): the least that S3 takes."""
LONG_RESULT_CHARS = 300_000
"""Of a result that becomes an artifact; half of the jobs with a file have one."""
_RETRY_SECONDS = 0.5
_LONGEST_SECONDS = 300.0


def file_of(number: int, seed: int, *, is_sure: bool = False, is_big: bool = False) -> bytes | None:
    """Return the bytes of a job's file; None if it has none. is_sure: it has one. is_big: of `BIG_BYTES`."""
    chance = random.Random(f"{seed} file {number}")
    has_one = chance.random() < SHARE
    size = chance.randint(1, MOST_BYTES)
    return chance.randbytes(BIG_BYTES if is_big else size) if has_one or is_sure else None


def output_of(attempt_id: str, size: int) -> bytes:
    """Return the bytes of the file that an attempt saves."""
    return random.Random(f"output {attempt_id}").randbytes(size)


def upload(client: WatchedClient, content: bytes, folder: Path) -> dict[str, Any]:
    """Upload a file, again until it is stored. Returns {artifact, sha256, bytes}. Raises DispatcherError."""
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"{digest}.bin"
    path.write_bytes(content)
    until = time.monotonic() + _LONGEST_SECONDS
    try:
        while True:
            try:
                artifact = client.upload(path, content_type="application/octet-stream")
                return {"artifact": artifact.id, "sha256": digest, "bytes": len(content)}
            except DispatcherError as error:
                lasts = isinstance(error, Problem) and not isinstance(error, Unavailable)
                if lasts or time.monotonic() > until:
                    raise
                time.sleep(_RETRY_SECONDS)
    finally:
        path.unlink(missing_ok=True)
