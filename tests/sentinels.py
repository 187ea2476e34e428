"""A master with a replica, watched by a Sentinel: real processes, which a test stops, kills and continues."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from dispatcher_project.embedded import EmbeddedValkey, die_with_parent, require_valkey
from tests.ports import free_port

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
        at_once = ("--repl-diskless-sync-delay", "0")
        self.master = EmbeddedValkey(folder / "m", append_only=False, port=free_port(), extra=at_once)
        follow = ("--replicaof", "127.0.0.1", str(self.master.port))
        self.replica = EmbeddedValkey(folder / "r", append_only=False, port=free_port(), extra=follow)
        self.sentinel_port = free_port()
        self._config = folder / "sentinel.conf"
        self._config.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/sentinel.log\n"
            f"sentinel monitor mymaster 127.0.0.1 {self.master.port} 1\n"
            f"sentinel down-after-milliseconds mymaster {int(down_after_seconds * 1000)}\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        self._sentinel: subprocess.Popen[bytes] | None = None
        self._stopped: set[int] = set()

    @property
    def url(self) -> str:
        """The first sentinel that it names is not there."""
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{self.sentinel_port}/mymaster/0"

    def start(self) -> None:
        self.master.start()
        self.replica.start()
        wait_until(lambda: direct(self.replica).info("replication")["master_link_status"] == "up")
        self._sentinel = subprocess.Popen(
            [require_valkey(), str(self._config), "--sentinel"],
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        # without the replica's name it would have nobody to promote
        wait_until(lambda: self._ask("SENTINEL", "REPLICAS", "mymaster"))

    def stop(self) -> None:
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
        self.replica.stop()
        self.master.stop()

    def pause(self, server: EmbeddedValkey) -> None:
        assert server.pid is not None
        self._stopped.add(server.pid)
        os.kill(server.pid, signal.SIGSTOP)

    def resume(self, server: EmbeddedValkey) -> None:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGCONT)
        self._stopped.discard(server.pid)

    def wait_for_promotion(self) -> None:
        """Until Sentinel names the replica."""
        wait_until(lambda: self.master_port() == self.replica.port)

    def master_port(self) -> int:
        return int(self._ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])

    def name_master(self, server: EmbeddedValkey) -> None:
        """What the Sentinel says from now on."""
        self._ask("SENTINEL", "REMOVE", "mymaster")
        self._ask("SENTINEL", "MONITOR", "mymaster", "127.0.0.1", str(server.port), "1")

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
