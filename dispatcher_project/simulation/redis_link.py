"""The real Valkey with the real scripts, whose clock, runs and replies are ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from dispatcher_project.simulation.scheduler import START, Scheduler
from dispatcher_project.simulation.weather import Weather
from gpus.leasing import keys
from gpus.leasing.scripts import (
    UNGREETED,
    Loaded,
    Scripts,
    as_text,
    library_code,
    library_name,
    library_text,
)
from gpus.leasing.store import RedisLeases

TIMEOUT_SECONDS = 2.0
Witness = Callable[[str, Sequence[Any], Any], None]
_SAVED = 1
_COPY = """
redis.call('SELECT', ARGV[1])
local found = redis.call('KEYS', '*')
for _, name in ipairs(found) do redis.call('COPY', name, name, 'DB', ARGV[2]) end
redis.call('SELECT', '0')
return #found
"""


class _OneConnection(redis.ConnectionPool):
    """Of one thread that never waits inside a call. redis-py's own pool looks before each call whether the
    connection is free, alive and empty, which costs as much as the call."""

    _one: Any = None

    def get_connection(self, *_: Any, **__: Any) -> Any:
        if self._one is None:
            self._one = self.make_connection()
            self._one.connect()
        return self._one

    def release(self, connection: Any) -> None:
        pass


def connect(url: str) -> redis.Redis:
    return redis.Redis(connection_pool=_OneConnection.from_url(url))


class RedisServer:
    """run: which start of the server this is; whoever it was greeted by is forgotten with it. witness: is
    told each script that was carried out, with its arguments and its answer (in bytes)."""

    def __init__(self, client: Any, scheduler: Scheduler, weather: Weather) -> None:
        self.client, self.scheduler, self.weather = client, scheduler, weather
        self.run = 1
        self.witness: Witness = lambda script, args, answer: None
        client.flushall()

    def now_ms(self) -> int:
        return int((START.timestamp() + self.scheduler.now) * 1000)

    def leases(self, fleet: str) -> SimulatedLeases:
        return SimulatedLeases(self, fleet)

    def is_whole(self, fleet: str) -> bool:
        """The fleet's index, as this run of the server knows it."""
        made_by = self.client.hget(f"{keys.prefix(fleet)}generation", "run_id")
        return bool(as_text(made_by) == f"run-{self.run}")

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
        return Loaded(run_id, _library(self.client, run_id, library_code()))

    def call(self, loaded: Loaded, name: str, args: Sequence[Any], send: Callable[[], Any]) -> Any:
        self._answer_at_all(name)
        if loaded.run_id != f"run-{self.run}":
            raise ResponseError(UNGREETED)
        answer = send()
        self.witness(name, args, answer)
        process = self.scheduler.current()
        if process is None:
            return answer
        if self.weather.happens(self.weather.redis_call_doubled):
            self.scheduler.note(process.name, "sent again")
            answer = send()
            self.witness(name, args, answer)
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


@lru_cache(maxsize=64)
def _library(client: Any, run_id: str, code: str) -> str:
    """One for each run of the server, greeted with it, once per client: the real server lives on."""
    name = library_name(run_id + code)
    client.function_load(library_text(name, code), replace=True)
    client.fcall(f"{name}_greet", 0, run_id)
    return name


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

    def _send(self, loaded: Loaded, name: str, args: tuple[str | int | float, ...]) -> Any:
        return self._server.call(
            loaded, name, args, lambda: super(SimulatedScripts, self)._send(loaded, name, args)
        )


class SimulatedLeases(RedisLeases):
    def __init__(self, server: RedisServer, fleet: str) -> None:
        super().__init__(server.client, fleet, now_ms=server.now_ms)
        self._scripts = SimulatedScripts(server, keys.prefix(fleet))
