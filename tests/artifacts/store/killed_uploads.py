"""`python -m tests.artifacts.store.killed_uploads FOLDER BYTES`: uploads the bytes (hexadecimal) in parts.

Into a store in FOLDER/1 by a process that is killed before its first step, into FOLDER/2 before its second,
and so on until one is not killed; prints that one's number. A program: each fork of the tests' process, which
is ten times as large, costs more than an upload.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from artifacts.store.contract import ObjectKey, size_of_part
from artifacts.store.local import LocalStore

PART_BYTES = 100
_STEPS = ("open", "ftruncate", "fsync", "pwrite", "write", "rename", "unlink", "utime", "mkdir", "rmdir")


def main(folder: Path, data: bytes) -> None:
    steps = next(step for step in count(1) if not _is_killed_at(step, folder / str(step), data))
    sys.stdout.write(f"{steps}\n")


def _is_killed_at(step: int, root: Path, data: bytes) -> bool:
    """Upload in another process, which is killed before its system call number `step`; return whether it
    was."""
    child = os.fork()
    if child == 0:
        steps = count(1)
        for name in _STEPS:
            real = getattr(os, name)

            def call(*given: Any, real: Any = real, **named: Any) -> Any:
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*given, **named)

            setattr(os, name, call)
        try:
            _upload(root, data)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"the upload of step {step} failed")
    return os.WIFSIGNALED(status)


def _upload(root: Path, data: bytes) -> None:
    store = LocalStore(root, "http://x", lambda: datetime.now(UTC), part_bytes=PART_BYTES)
    key = ObjectKey(7, hashlib.sha256(data).hexdigest())
    upload = store.begin_parts(key, len(data)).upload
    for number in (2, 1, 3):
        size = size_of_part(len(data), PART_BYTES, number)
        with store.receive_part(key, upload, number, size) as receiver:
            receiver.add(data[(number - 1) * PART_BYTES :][:size])
            receiver.finish()
    store.complete_parts(key, upload, len(data))


if __name__ == "__main__":
    main(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
