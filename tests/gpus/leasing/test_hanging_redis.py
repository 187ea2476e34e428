"""A Redis that accepts connections but does not answer: every call ends soon, also with many callers."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisLeases

PROMISED_SECONDS = 3.5
"""What a submit has for all of it (jobs/submission/submit.py)."""


def test_threads_that_have_no_script_yet_do_not_queue_up() -> None:
    def ask(after_seconds: float) -> float:
        time.sleep(after_seconds)  # they come one after another, while the first one waits for its time-out
        began = time.monotonic()
        with pytest.raises(LeasingUnavailable):
            leases.generation()
        return time.monotonic() - began

    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, ThreadPoolExecutor(8) as threads:
        leases = RedisLeases(connect(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"), "f")
        awaited = [threads.submit(ask, number * 0.3) for number in range(8)]
        assert max(one.result() for one in awaited) < PROMISED_SECONDS
