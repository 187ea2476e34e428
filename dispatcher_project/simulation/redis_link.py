"""The real Valkey with the real scripts, whose clock, runs and replies are ours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dispatcher_project.simulation.scheduler import START, Scheduler
from dispatcher_project.simulation.weather import Weather
from gpus.leasing import keys
from gpus.leasing.scripts import Loaded, Scripts, read_script, script_names
from gpus.leasing.store import RedisLeases

TIMEOUT_SECONDS = 2.0
_SAVED = 1
_COPY = """
redis.call('SELECT', ARGV[1])
local found = redis.call('KEYS', '*')
for _, name in ipairs(found) do redis.call('COPY', name, name, 'DB', ARGV[2]) end
redis.call('SELECT', '0')
return #found
"""


class RedisServer:
    """run: which start of the server this is; its scripts are forgotten with it."""

    def __init__(self, client: Any, scheduler: Scheduler, weather: Weather) -> None:
        self.client, self.scheduler, self.weather = client, scheduler, weather
        self.run = 1
        client.flushall()

    def now_ms(self) -> int:
        return int((START.timestamp() + self.scheduler.now) * 1000)

    def leases(self, fleet: str) -> SimulatedLeases:
        return SimulatedLeases(self, fleet)

    # -- what happens to it ----------------------------------------------------------------------------

    def flush(self) -> None:
        self.client.flushdb()

    def restart(self, *, empty: bool) -> None:
        self.run += 1
        if empty:
            self.flush()

    def save(self) -> None:
        """A replica has come so far; see `fail_over`."""
        self.client.eval("redis.call('SELECT', '1') redis.call('FLUSHDB') redis.call('SELECT', '0')", 0)
        self.client.eval(_COPY, 0, 0, _SAVED)

    def fail_over(self) -> None:
        """The replica takes over, with what it had when it was last saved."""
        self.flush()
        self.client.eval(_COPY, 0, _SAVED, 0)
        self.restart(empty=False)

    # -- calls -----------------------------------------------------------------------------------------

    def load(self) -> Loaded:
        self._answer_at_all("load")
        run_id = f"run-{self.run}"
        return Loaded(run_id, _hashes(self.client, run_id, read_script))

    def call(self, script_hash: str, send: Callable[[], Any]) -> Any:
        run_id, name = _scripts[script_hash]
        self._answer_at_all(name)
        if run_id != f"run-{self.run}":
            raise NoScriptError("NOSCRIPT")
        answer = send()
        process = self.scheduler.current()
        if process is None:
            return answer
        if self.weather.happens(self.weather.redis_call_doubled):
            self.scheduler.note(process.name, "sent again")
            answer = send()
        if self.weather.happens(self.weather.redis_reply_lost):
            self.scheduler.note(process.name, "reply lost")
            self.scheduler.sleep(TIMEOUT_SECONDS)
            raise RedisTimeoutError("Timeout reading from socket")
        return answer

    def _answer_at_all(self, what: str) -> None:
        process = self.scheduler.current()
        if process is None:
            return
        self.scheduler.point(f"redis {what}")
        if self.weather.redis_silent or process.name in self.weather.cut_from_redis:
            self.scheduler.sleep(TIMEOUT_SECONDS)
            raise RedisTimeoutError("Timeout reading from socket")
        if self.weather.redis_refuses:
            raise RedisConnectionError("Connection refused")


_scripts: dict[str, tuple[str, str]] = {}
"""Run and name of every script that was ever loaded, by hash."""


@lru_cache(maxsize=64)
def _hashes(client: Any, run_id: str, read: Callable[[str], str]) -> dict[str, str]:
    """Loads what a run of the server needs, once per client: the real server never forgets."""
    hashes = {}
    for name in script_names():
        text = f"local RUN_ID = '{run_id}'\n{read(name)}"
        hashes[name] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        client.script_load(text)
        _scripts[hashes[name]] = (run_id, name)
    return hashes


class SimulatedScripts(Scripts):
    def __init__(self, server: RedisServer, prefix: str) -> None:
        super().__init__(server.client, prefix)
        self._server = server

    def load(self) -> Loaded:
        self._loaded = self._server.load()
        return self._loaded

    def _load_once(self, known: Loaded | None) -> Loaded:
        """Without the lock: it would stop the one thread of the simulator."""
        return self._loaded if self._loaded and self._loaded is not known else self.load()

    def _send(self, script_hash: str, args: tuple[str | int | float, ...]) -> Any:
        return self._server.call(script_hash, lambda: super(SimulatedScripts, self)._send(script_hash, args))


class SimulatedLeases(RedisLeases):
    def __init__(self, server: RedisServer, fleet: str) -> None:
        super().__init__(server.client, fleet, now_ms=server.now_ms)
        self._scripts = SimulatedScripts(server, keys.prefix(fleet))
