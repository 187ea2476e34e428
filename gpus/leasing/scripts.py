"""Calls the Lua scripts by name, as functions of a Redis library (`gpus.leasing.library`).

A library is compiled once, when it is loaded; an `EVAL` script creates all its functions on every call, which
cost as much as their work. But Redis persists and replicates libraries, so a library does not prove which run
of the server it is in. Therefore a client first *greets* each server process: it reads the server's run id
and replication id (which changes when a replica becomes a master) and sends both to the library over the same
connection. The library keeps them in Lua variables, which are neither persisted nor replicated, and refuses
every call before it has them; the client then greets and sends the call again. So no script trusts an index
of another run, and no connection needs a check of its own. The only other state of the library is the
fleet's clock (lua/includes/call.lua). Decision: docs/adr/0018-redis-scripts-are-a-function-library.md.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import (
    AskError,
    MovedError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from gpus.errors import LeasingFull, LeasingUnavailable
from gpus.leasing.codec import Argument
from gpus.leasing.library import LIBRARIES, library_code, library_name, library_text, parameters_of

LOAD_SECONDS = 1.0
"""How long a thread waits for another thread's load, so that threads do not queue up at a hanging Redis. With
its own load's timeout after that (connect.py) a submit still ends within 3.5 s."""
Client = redis.Redis | redis.RedisCluster
FAILURES = (RedisError, RedisClusterException)
"""Exceptions of redis-py for a missing reply; the cluster's is not a RedisError."""
_RUN_ID = re.compile(r"run_id:(\w*)")
_REPLICATION = re.compile(r"master_replid:(\w*)")
UNGREETED = "UNGREETED"
_NOT_LOADED = ("Function not found", UNGREETED)
"""Prefixes of errors that prove that the call did not run: the library, or the server process, is new."""
_EXISTS = "already exists"
_IDLE_SECONDS = 3600.0
"""Another version's library that was not called for this long is deleted with the next load."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The library on one run of a server."""

    run_id: str
    library: str
    replication: str = ""
    """The server's replication id; it changes when a replica becomes a master."""


class Scripts:
    """Runs scripts under one key prefix. Every failure is LeasingUnavailable; no call runs twice.

    now_ms: a simulator's clock (milliseconds since the epoch) in place of Redis' own. monotonic: clock of
    this process, seconds; None: Redis' clock alone measures elapsed time.
    """

    def __init__(
        self,
        client: Client,
        prefix: str,
        *,
        now_ms: Callable[[], int] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._client: Any = client
        # checked once: redis-py's classes are protocols, and isinstance is slow for these
        self._cluster = client if isinstance(client, redis.RedisCluster) else None
        self._prefix = prefix
        self._loaded: Loaded | None = None
        self._loading = threading.Lock()
        self._now_ms = now_ms
        self._monotonic = monotonic or (time.monotonic if now_ms is None else None)
        self._sent_at: float | None = None
        """Monotonic time of the latest answered call."""

    def run(self, script: str, /, **args: Argument) -> Any:
        """Run a script and return its answer: None, an int, a text, or lists of these.

        args: all arguments that the script's head names, None for nil. Raises BadCall, LeasingUnavailable.
        """
        values = parameters_of(script).values(args)
        if self._monotonic is None:
            return self._call(script, "", values)
        sent_at, before = self._monotonic(), self._sent_at
        since_us = "" if before is None else max(0, int((sent_at - before) * 1_000_000))
        answer = self._call(script, since_us, values)
        self._sent_at = sent_at
        return answer

    def _call(self, name: str, since_us: int | str, values: Sequence[Any]) -> Any:
        """since_us: time since the latest answered call, empty before the first one."""
        try:
            loaded = self._loaded or self._load_once(None)
            try:
                answer = self._send(loaded, name, since_us, values)
            except ResponseError as error:
                if not str(error).startswith(_NOT_LOADED):
                    raise
                answer = self._send(self._load_once(loaded), name, since_us, values)  # it did not run
        except AskError as error:
            raise LeasingUnavailable("the fleet's keys move to another node of the cluster") from error
        except OutOfMemoryError as error:
            raise LeasingFull("Redis is at its maxmemory") from error
        except ResponseError as error:
            raise LeasingUnavailable(str(error).removeprefix("UNAVAILABLE ")) from error
        except FAILURES as error:
            raise LeasingUnavailable(f"Redis does not answer: {error}") from error
        return as_text(answer)

    def load(self) -> Loaded:
        """Load the library if it is missing, and send it the server's run id and replication id.

        Raises one of FAILURES.
        """
        pool = self._node().connection_pool
        connection: Any = pool.get_connection()

        def ask(*command: str | int) -> Any:
            connection.send_command(*command)
            return connection.read_response()

        try:
            facts = as_text(ask("INFO", "server", "replication"))
            found, replication = _RUN_ID.search(facts), _REPLICATION.search(facts)
            if not found or not found[1]:
                # without a run id an index of an earlier run would be trusted
                raise RedisError("INFO server returns no run_id")
            name = library_name(library_code(), pool.connection_kwargs.get("db") or 0)
            loaded = Loaded(found[1], name, replication[1] if replication else "")
            greeting = ("FCALL", f"{name}_greet", 0, loaded.run_id, loaded.replication)
            try:
                ask(*greeting)
            except ResponseError:
                load_library(ask, name)
                ask(*greeting)
        except BaseException:
            connection.disconnect()  # a late reply would be read as the next command's
            raise
        finally:
            pool.release(connection)
        self._loaded = loaded
        return loaded

    def _load_once(self, known: Loaded | None) -> Loaded:
        """Load in one thread while the others wait. known: the loaded library that was refused, or None."""
        if not self._loading.acquire(timeout=LOAD_SECONDS):
            raise LeasingUnavailable("Redis does not answer: the scripts are still being loaded")
        try:
            return self._loaded if self._loaded and self._loaded is not known else self.load()
        finally:
            self._loading.release()

    def _send(self, loaded: Loaded, name: str, since_us: int | str, values: Sequence[Any]) -> Any:
        clock_us = "" if self._now_ms is None else self._now_ms() * 1000
        command = ("FCALL", f"{loaded.library}_{name}", 1, self._prefix, since_us, clock_us, *values)
        if self._cluster is None:
            return _ask(self._client, command)
        try:
            return self._ask_holder(self._cluster, command)
        except MovedError as error:  # the call did not run
            self._cluster.nodes_manager.move_slot(error)
        return self._ask_holder(self._cluster, command)

    def _ask_holder(self, cluster: redis.RedisCluster, command: tuple[Any, ...]) -> Any:
        """Send to the node that holds the fleet's slot, without following ASK as the cluster client does.

        While the slot migrates, a call sent to the target node would create keys there before the migrated
        ones arrive.
        """
        node = cluster.get_node_from_key(self._prefix)  # type: ignore[no-untyped-call]
        try:
            return _ask(cluster.get_redis_connection(node), command)
        except (redis.ConnectionError, redis.TimeoutError):  # another node may hold the slot by now
            nodes: Any = cluster.nodes_manager
            nodes.move_node_to_end_of_cached_nodes(node.name)
            nodes.initialize(last_failed_node_name=node.name)
            raise

    def _node(self) -> redis.Redis:
        """The server that holds the prefix's hash slot."""
        if self._cluster is None:
            return self._client  # type: ignore[no-any-return]
        node = self._cluster.get_node_from_key(self._prefix)  # type: ignore[no-untyped-call]
        if node is None:
            raise RedisError("no node of the cluster holds the fleet's slot")
        return self._cluster.get_redis_connection(node)


def _ask(client: redis.Redis, command: tuple[Any, ...]) -> Any:
    """`execute_command` without redis-py's callbacks, metrics and retries, which cost a sixth of the call."""
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response()
    except BaseException as error:
        if not isinstance(error, ResponseError) or isinstance(error, ReadOnlyError):
            # a late reply would be read as the next command's; a read-only server is a former master
            connection.disconnect()
        raise
    finally:
        pool.release(connection)


def load_library(ask: Callable[..., Any], name: str) -> None:
    """Load the library, and delete libraries of other versions that were idle; a version in use loads its own
    again.

    ask: sends one command and returns the reply.
    """
    try:
        ask("FUNCTION", "LOAD", library_text(name, library_code()))
    except ResponseError as error:
        if _EXISTS not in str(error):  # another process was first
            raise
        return
    for found in ask("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARIES}*"):
        other = as_text(next(iter(found.values())) if isinstance(found, dict) else found[1])  # RESP 3, RESP 2
        with suppress(ResponseError):  # another process deleted it first
            if other != name and ask("FCALL", f"{other}_idle", 0) > _IDLE_SECONDS:
                ask("FUNCTION", "DELETE", other)


def as_text(answer: Any) -> Any:
    """Decode bytes in a reply, recursively."""
    if isinstance(answer, bytes):
        return answer.decode()
    if isinstance(answer, list):
        return [as_text(item) for item in answer]
    return answer
