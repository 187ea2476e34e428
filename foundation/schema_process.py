"""Checks against a schema that may take long, in processes that can be killed."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from foundation.foreign_schema import ForeignSchema, Mismatch

_CHILD = """
import json, resource, sys, time
from contextlib import suppress
from functools import lru_cache

most_bytes, most_seconds = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with suppress(ValueError, OSError):  # macOS has no such limit
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

def refuse(uri):
    raise ValueError(uri)

@lru_cache(maxsize=16)
def compiled(text):
    schema = json.loads(text)
    return Draft202012Validator(
        schema, retriever=refuse, pattern_options=RegexOptions(), mask="The value"
    )

for line in sys.stdin.buffer:
    # should the parent end first, nobody else ends a check
    last_second = int(time.process_time()) + most_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (last_second, resource.RLIM_INFINITY))
    payload = json.loads(sys.stdin.buffer.readline())
    validator, said = compiled(json.loads(line)), None
    if not validator.is_valid(payload):
        try:
            validator.validate(payload)
        except ValidationError as error:
            said = [list(error.instance_path), error.message[:200]]
    sys.stdout.write(json.dumps(said) + "\\n")
    sys.stdout.flush()
"""


_OUT_OF_TIME = (-signal.SIGKILL, -signal.SIGXCPU)
"""Return codes. A process that is out of memory ends by itself: the library aborts, Python exits."""


class TooLong(Exception):
    """The check did not end in time."""


class TooMuchMemory(TooLong):
    """The check needed more memory than it may have."""


class NoneFree(Exception):
    """All processes for such checks were busy, or none could be started."""


@dataclass(slots=True)
class Patience:
    """Seconds that all checks of one request share."""

    left: float = field(default_factory=lambda: settings.DISPATCHER.schema_check_seconds)


class SchemaProcesses:
    """Started when first needed; each ends with this process, whose end closes its input."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy = 0

    def mismatch(self, schema: ForeignSchema, payload: Any, patience: Patience) -> Mismatch | None:
        """Takes what it takes from `patience`. Raises TooLong, TooMuchMemory, NoneFree."""
        began = time.monotonic()
        try:
            process = self._take(patience.left)
            try:
                said = _ask(process, schema, payload, patience.left - (time.monotonic() - began))
            finally:
                self._give_back(process)
        finally:
            patience.left = max(0.0, patience.left - (time.monotonic() - began))
        return None if said is None else Mismatch(tuple(said[0]), said[1])

    def close(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def _take(self, seconds: float) -> subprocess.Popen[bytes]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._busy < settings.DISPATCHER.schema_checks, seconds):
                raise NoneFree
            self._busy += 1
            process = None
            while self._idle and process is None:
                process = self._idle.pop()
                if process.poll() is not None:
                    _end(process)
                    process = None
        try:
            return process or _start()
        except OSError:
            self._leave()
            raise NoneFree from None

    def _give_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._changed:
            if process.returncode is None:
                self._idle.append(process)
        self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify()


def _start() -> subprocess.Popen[bytes]:
    limits = settings.DISPATCHER
    most = (limits.schema_check_bytes, math.ceil(limits.schema_check_seconds) + 1)
    return subprocess.Popen(
        [sys.executable, "-I", "-c", _CHILD, *map(str, most)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _ask(process: subprocess.Popen[bytes], schema: ForeignSchema, payload: Any, seconds: float) -> Any:
    """Kills the process when it takes longer, or fails."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Timer(max(seconds, 0.0), process.kill)
    late.start()
    answer = b""
    with suppress(OSError):  # killed
        process.stdin.write(b"%s\n%s\n" % (json.dumps(schema.text).encode(), json.dumps(payload).encode()))
        process.stdin.flush()
        answer = process.stdout.readline()
    late.cancel()
    if not answer.endswith(b"\n"):
        _end(process)
        raise TooLong if process.returncode in _OUT_OF_TIME else TooMuchMemory
    return json.loads(answer)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()


# of the process: they are its child processes
processes = SchemaProcesses()
