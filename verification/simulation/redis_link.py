"""A real Valkey with the real scripts; clock, restarts and lost replies are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gpus.leasing import keys
from gpus.leasing.codec import Argument, read_lease
from gpus.leasing.library import library_code, library_name, library_text
from gpus.leasing.scripts import UNGREETED, Loaded, Scripts, as_text
from gpus.leasing.store import RedisLeases
from gpus.registry.processes import IndexGate
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.scheduler import START, Scheduler

TIMEOUT_SECONDS = 2.0
ScriptObserver = Callable[[str, Mapping[str, Any], Any], None]
GRANTING = frozenset({"claim", "release", "reserve"})
"""Scripts that grant leases, and return them."""
_SAVED = 1
_COPY = """
redis.call('SELECT', ARGV[1])
local found = redis.call('KEYS', '*')
for _, name in ipairs(found) do redis.call('COPY', name, name, 'DB', ARGV[2]) end
redis.call('SELECT', '0')
return #found
"""


class _OneConnection(redis.ConnectionPool):
    """The connection of one thread that never waits inside a call.

    redis-py's own pool checks before each call whether the connection is free, alive and empty, which costs
    as much as the call."""

    _one: Any = None

    def get_connection(self, *_: Any, **__: Any) -> Any:
        if self._one is None:
            self._one = self.make_connection()
            self._one.connect()
        return self._one

    def release(self, connection: Any) -> None:
        pass


def connect(url: str) -> redis.Redis:
    """Return a client with a single connection, because all fibers share one thread."""
    return redis.Redis(connection_pool=_OneConnection.from_url(url))


class RedisServer:
    """The Redis process that answers now, which changes with a restart and a failover.

    run_id: of that process. replication: the id that a process gets when it becomes the master. term: grows
    with each change; a greeting is valid for one term, because functions are reloaded after a restart and
    after a replica's full resync. observer: called with each script that was carried out, its arguments and
    its answer (bytes).
    """

    def __init__(self, client: Any, scheduler: Scheduler, active_faults: ActiveFaults) -> None:
        self.client, self.scheduler, self.active_faults = client, scheduler, active_faults
        self.run_id, self.replication, self.term = "run-1", "replication-1", 1
        self.observer: ScriptObserver = lambda script, args, answer: None
        self.index_lost_at = 0.0
        """When an index was last lost: data of a restarted server is not trusted."""
        self._index_losses = 0
        self._losses_before: dict[tuple[int, str], int] = {}
        """By fence and attempt of each lease that was granted: the losses of an index until then."""
        self._filled = 0
        self.offset_seconds = 0.0
        """Of its wall clock."""
        client.config_set("maxmemory", 0)
        client.flushall()

    def now_ms(self) -> int:
        """Return the server's simulated time, in ms."""
        return int(self._timestamp() * 1000)

    def time(self) -> float:
        """Return its wall clock, like `TIME`."""
        self._check_reachable("time")
        return self._timestamp()

    def leases(self, fleet: str, layout: int = 0, refusal: Callable[[], str] = str) -> SimulatedLeases:
        """Return the leases of a fleet. layout, refusal: see `RedisLeases`."""
        return SimulatedLeases(self, fleet, layout, refusal)

    def gate(self, fleet: str, layout: int) -> IndexGate:
        """Return the switch that closes and opens an index of this layout."""
        return SimulatedGate(self, fleet, layout)

    def is_whole(self, fleet: str, layout: int = 0) -> bool:
        """Return True if this run of the server has the fleet's whole index."""
        made = self.client.hmget(keys.Keys(fleet, layout).generation(), "run_id", "replication")
        return bool(as_text(made) == [self.run_id, self.replication])

    def is_held(self, fleet: str, job_id: str, layout: int = 0) -> bool:
        """Return True if the job is leased, or claimed ahead of a lease."""
        return bool(self.client.hexists(keys.Keys(fleet, layout).held(), job_id))

    def lost_index_between(self, first: tuple[int, str], second: tuple[int, str]) -> bool:
        """Return True if an index was lost after the first lease was granted, and before the second. first,
        second: fence and attempt."""
        before = self._losses_before
        return first in before and second in before and before[first] < before[second]

    def _timestamp(self) -> float:
        return START.timestamp() + self.scheduler.now + self.offset_seconds

    # -- faults ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.client.flushdb()
        self._lose_index()

    def restart(self, *, empty: bool) -> None:
        self._change_to(f"run-{self.term + 1}")
        if empty:
            self.flush()

    def save(self) -> None:
        """Record the state that a replica has; see `fail_over`."""
        with self._without_memory_limit():
            self.client.eval("redis.call('SELECT', '1') redis.call('FLUSHDB') redis.call('SELECT', '0')", 0)
            self.client.eval(_COPY, 0, 0, _SAVED)

    def fail_over(self, run_id: str = "") -> None:
        """Promote the replica, with the state last saved. run_id: of its process, if it was the master
        before."""
        self.flush()
        with self._without_memory_limit():
            self.client.eval(_COPY, 0, _SAVED, 0)
        self._change_to(run_id or f"run-{self.term + 1}")

    def fill_up(self) -> None:
        """Set the memory limit without an eviction policy: the real server then refuses commands that need
        memory."""
        self._filled += 1
        self.client.config_set("maxmemory", 1)

    def free_memory(self) -> None:
        """End one `fill_up`."""
        self._filled -= 1
        if not self._filled:
            self.client.config_set("maxmemory", 0)

    @contextmanager
    def _without_memory_limit(self) -> Iterator[None]:
        """For copies between databases, which represent other servers."""
        if not self._filled:
            yield
            return
        self.client.config_set("maxmemory", 0)
        try:
            yield
        finally:
            self.client.config_set("maxmemory", 1)

    def _change_to(self, run_id: str) -> None:
        self.term += 1
        self._lose_index()
        self.run_id, self.replication = run_id, f"replication-{self.term}"

    def _lose_index(self) -> None:
        self.index_lost_at = self.scheduler.now
        self._index_losses += 1

    # -- calls -----------------------------------------------------------------------------------------

    def load(self, fleet: str) -> tuple[Loaded, int]:
        """Load the functions; return the term in which they are valid, too."""
        self._check_reachable("load", fleet)
        with self._without_memory_limit():  # a real server already has the library
            library = _library(self.client, self.run_id, self.replication, library_code())
        return Loaded(self.run_id, library, self.replication), self.term

    def call(self, fleet: str, term: int, name: str, args: Mapping[str, Any], send: Callable[[], Any]) -> Any:
        """Carry out a script, with the active faults."""
        self._check_reachable(name, fleet)
        if term != self.term:
            raise ResponseError(UNGREETED)
        process = self.scheduler.current()
        if process is None:
            with self._without_memory_limit():  # the judge always gets an answer
                return send()
        answer = self._carry_out(name, args, send)
        if self.active_faults.happens(self.active_faults.redis_call_doubled):
            self.scheduler.note(process.name, "sent again")
            answer = self._carry_out(name, args, send)
        if self.active_faults.happens(self.active_faults.redis_reply_lost):
            self.scheduler.note(process.name, "reply lost")
            self.scheduler.sleep(TIMEOUT_SECONDS)
            raise RedisTimeoutError("Timeout reading from socket")
        return answer

    def _carry_out(self, name: str, args: Mapping[str, Any], send: Callable[[], Any]) -> Any:
        answer = send()
        if name in GRANTING and isinstance(answer, list) and (lease := read_lease(answer)) is not None:
            self._losses_before.setdefault((lease.fence, as_text(lease.attempt_id)), self._index_losses)
        self.observer(name, args, answer)
        return answer

    def _check_reachable(self, what: str, fleet: str = "") -> None:
        process = self.scheduler.current()
        if process is None:
            return
        self.scheduler.point(f"redis {what}")
        active_faults = self.active_faults
        if (
            active_faults.redis_silent
            or process.name in active_faults.cut_from_redis
            or (active_faults.silent_fleets and fleet in active_faults.silent_fleets)
        ):
            self.scheduler.sleep(TIMEOUT_SECONDS)
            raise RedisTimeoutError("Timeout reading from socket")
        if self.active_faults.redis_refuses:
            raise RedisConnectionError("Connection refused")


@lru_cache(maxsize=64)
def _library(client: Any, run_id: str, replication: str, code: str) -> str:
    """Return a library for each run of the server, once per client: the real server keeps running."""
    name = library_name(run_id + replication + code)
    client.function_load(library_text(name, code), replace=True)
    client.fcall(f"{name}_greet", 0, run_id, replication)
    return name


class SimulatedScripts(Scripts):
    """The product's script calls, with switching points, faults and the simulated clock."""

    def __init__(self, server: RedisServer, fleet: str, layout: int) -> None:
        super().__init__(
            server.client,
            keys.prefix(fleet, layout),
            now_ms=server.now_ms,
            monotonic=lambda: server.scheduler.now,
        )
        self._server, self._fleet, self._term = server, fleet, 0
        self._args: Mapping[str, Argument] = {}

    def load(self) -> Loaded:
        self._loaded, self._term = self._server.load(self._fleet)
        return self._loaded

    def _load_once(self, known: Loaded | None) -> Loaded:
        """Without the lock, which would stop the simulator's only thread."""
        return self._loaded if self._loaded and self._loaded is not known else self.load()

    def run(self, script: str, /, **args: Argument) -> Any:
        self._args = args
        return super().run(script, **args)

    def _send(self, loaded: Loaded, name: str, since_us: int | str, values: Sequence[Any]) -> Any:
        """Each call takes the current time: the caller may be stopped in between."""
        args, send = self._args, partial(super()._send, loaded, name, since_us, values)
        return self._server.call(self._fleet, self._term, name, args, send)


class SimulatedLeases(RedisLeases):
    """The product's lease store on simulated script calls."""

    def __init__(self, server: RedisServer, fleet: str, layout: int, refusal: Callable[[], str]) -> None:
        super().__init__(
            server.client,
            fleet,
            layout=layout,
            refusal=refusal,
        )
        self._scripts = SimulatedScripts(server, fleet, layout)


class SimulatedGate(IndexGate):
    """The product's index gate on simulated script calls."""

    def __init__(self, server: RedisServer, fleet: str, layout: int) -> None:
        super().__init__(server.client, fleet, layout)
        self._scripts = SimulatedScripts(server, fleet, layout)
