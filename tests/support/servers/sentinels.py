"""A master with a replica, watched by a Sentinel: real processes, which a test stops, kills and continues."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.support.ports import free_port
from verification.proving.sentinel import MASTER, NAMES, SentinelValkeys

NEVER_SECONDS = 600.0


def wait_until(is_true: Callable[[], Any], seconds: float = 30.0) -> float:
    """How long it took. Errors of Redis count as not yet."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            if is_true():
                return time.monotonic() - began
        except redis.RedisError:
            pass
        threading.Event().wait(0.02)
    raise AssertionError(f"not within {seconds:g} s")


class Watched:
    """`master` and `replica` keep these names whatever Sentinel makes of them."""

    def __init__(self, folder: Path, down_after_seconds: float) -> None:
        listens = {name: free_port() for name in NAMES}
        self.sentinel_port = free_port()
        self._valkeys = SentinelValkeys(
            folder,
            listens=listens,
            known_as=listens,
            sentinel_ports=(self.sentinel_port,),
            down_after_seconds=down_after_seconds,
            failover_seconds=3.0,
            append_only=False,
        )
        self.master, self.replica = (self._valkeys.servers[name] for name in NAMES)

    @property
    def url(self) -> str:
        """The first sentinel that it names is not there."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel_port}/{MASTER}/0"

    def start(self) -> None:
        self._valkeys.start()

    def stop(self) -> None:
        self._valkeys.stop()

    def pause(self, server: EmbeddedValkey) -> None:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)

    def resume(self, server: EmbeddedValkey) -> None:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGCONT)

    def wait_for_promotion(self) -> None:
        """Until Sentinel names the replica."""
        wait_until(lambda: self.master_port() == self.replica.port)

    def master_port(self) -> int:
        return int(self._ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)[1])

    def name_master(self, server: EmbeddedValkey) -> None:
        """What the Sentinel says from now on."""
        self._ask("SENTINEL", "REMOVE", MASTER)
        self._ask("SENTINEL", "MONITOR", MASTER, "127.0.0.1", str(server.port), "1")

    def _ask(self, *command: str) -> Any:
        with redis.Redis(port=self.sentinel_port, decode_responses=True) as client:
            return client.execute_command(*command)


def direct(server: EmbeddedValkey) -> Any:
    return redis.Redis.from_url(server.url, decode_responses=True)


@contextmanager
def watched(folder: Path, *, down_after_seconds: float = 0.5) -> Iterator[Watched]:
    system = Watched(folder, down_after_seconds)
    try:
        system.start()
        yield system
    finally:
        system.stop()
