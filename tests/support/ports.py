"""Ports that are bound only later: in another process, or once more after an end."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_FIRST, _LAST = 12_000, 22_000
"""The system gives none of these to a server that takes any, or to a caller: its own begin at 32,768. A
cluster's bus ports, 10,000 above, are reserved too."""
_owners = (Path(tempfile.gettempdir()) / f"gpu-dispatcher-test-ports-{os.getuid()}").open("wb")
"""One byte a port, locked by the process that it was given to as long as that lives."""
_candidates = iter(random.SystemRandom().sample(range(_FIRST, _LAST), _LAST - _FIRST))


def free_port() -> int:
    """No other test gets it, in this process or in another, whether something listens there or not."""
    return next(port for port in _candidates if _is_ours(port) and _is_free(port))


def _is_ours(port: int) -> bool:
    try:
        fcntl.lockf(_owners, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
