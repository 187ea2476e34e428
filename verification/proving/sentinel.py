"""A master, a replica and three Sentinels for `prove --redis sentinel`.

Clients, Sentinels and the replica reach both servers through the trial's proxy, which can cut one off while
it lives on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis

from dispatcher_project.supervisor.embedded import die_with_parent, require_valkey
from verification.proving.system import CannotProve
from verification.proving.valkey import OwnValkey

NAMES = ("valkey-a", "valkey-b")
MASTER = "gpuq"
DOWN_AFTER_SECONDS = 2.0
FAILOVER_SECONDS = 6.0
SENTINELS = 3
_START_SECONDS = 30.0


class SentinelValkeys:
    """Two Valkeys and their Sentinels.

    listens, known_as: the ports of both servers by name, their own and those of the proxy. sentinel_ports: of
    the Sentinels. down_after_seconds: a master silent for this time is down for them. failover_seconds: their
    failover-timeout; a failover that found no replica is retried after twice that.
    """

    def __init__(
        self,
        folder: Path,
        *,
        listens: Mapping[str, int],
        known_as: Mapping[str, int],
        sentinel_ports: tuple[int, ...],
        down_after_seconds: float = DOWN_AFTER_SECONDS,
        failover_seconds: float = FAILOVER_SECONDS,
        append_only: bool = True,
    ) -> None:
        self._folder, self._known_as, self._ports = folder, dict(known_as), sentinel_ports
        self._down_after_seconds, self._failover_seconds = down_after_seconds, failover_seconds
        self.servers: dict[str, OwnValkey] = {}
        for name in NAMES:
            extra = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", str(known_as[name])]
            extra += ["--repl-diskless-sync-delay", "0"]
            if name == NAMES[1]:
                extra += ["--replicaof", "127.0.0.1", str(known_as[NAMES[0]])]
            self.servers[name] = OwnValkey(
                folder / name, append_only=append_only, port=listens[name], extra=tuple(extra)
            )
        self._sentinels: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which a dispatcher finds the master."""
        hosts = [f"127.0.0.1:{port}" for port in self._ports]
        return {
            "REDIS_URL": f"redis+sentinel://{','.join(hosts)}/{MASTER}/0",
            "BROKER_URL": ";".join(f"sentinel://{host}" for host in hosts),
            "BROKER_SENTINEL_MASTER": MASTER,
        }

    @property
    def master(self) -> str:
        """Return the name of the master by the Sentinels; empty while none of them answers."""
        for port in self._ports:
            with contextlib.suppress(redis.RedisError), _client(port) as client:
                found = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
                return next(name for name, known in self._known_as.items() if known == int(found[1]))
        return ""

    @property
    def replica(self) -> str:
        return NAMES[1] if self.master == NAMES[0] else NAMES[0]

    def pids(self) -> dict[str, int]:
        return {name: server.pid for name, server in self.servers.items() if server.pid and server.is_running}

    def start(self) -> None:
        """Return once the Sentinels know master and replica. Raises CannotProve."""
        for server in self.servers.values():
            server.start()
        self._until(self.is_replicating)
        for number, port in enumerate(self._ports):
            self._sentinels.append(self._start_sentinel(number, port))
        self._until(self._all_know)

    def is_replicating(self) -> bool:
        """Return True if one server follows the other."""
        return any(self._info(name).get("master_link_status") == "up" for name in NAMES)

    def send(self, name: str, number: signal.Signals) -> None:
        pid = self.servers[name].pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def stop(self) -> None:
        for process in self._sentinels:
            process.kill()
            process.wait()
        for name, server in self.servers.items():
            if server.pid:
                self.send(name, signal.SIGCONT)
            server.stop()

    def _start_sentinel(self, number: int, port: int) -> subprocess.Popen[bytes]:
        folder = self._folder / f"sentinel-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder}/sentinel.log\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {self._known_as[NAMES[0]]} {len(self._ports) // 2 + 1}\n"
            f"sentinel down-after-milliseconds {MASTER} {int(self._down_after_seconds * 1000)}\n"
            f"sentinel failover-timeout {MASTER} {int(self._failover_seconds * 1000)}\n"
        )
        return subprocess.Popen(
            [require_valkey(), str(config), "--sentinel"],
            preexec_fn=die_with_parent,  # noqa: PLW1509
            start_new_session=True,
        )

    def _all_know(self) -> bool:
        for port in self._ports:
            with _client(port) as client:
                known: Any = client.execute_command("SENTINEL", "MASTER", MASTER)
                facts = known if isinstance(known, dict) else dict(zip(known[::2], known[1::2], strict=True))
                if int(facts["num-slaves"]) < 1 or int(facts["num-other-sentinels"]) < len(self._ports) - 1:
                    return False
        return True

    def _info(self, name: str) -> dict[str, Any]:
        try:
            with redis.Redis.from_url(self.servers[name].url, socket_timeout=1.0) as client:
                info: Any = client.info("replication")
                return dict(info)
        except redis.RedisError:
            return {}

    def _until(self, is_true: Callable[[], bool]) -> None:
        until = time.monotonic() + _START_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(redis.RedisError):
                if is_true():
                    return
            time.sleep(0.1)
        raise CannotProve(f"the trial's Sentinels did not come up in {_START_SECONDS:.0f} s: {self._folder}")


def _client(port: int) -> redis.Redis:
    return redis.Redis(port=port, decode_responses=True, socket_timeout=1.0, socket_connect_timeout=1.0)
