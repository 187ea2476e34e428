"""Calls the Lua scripts by name, as functions of a library (`gpus.leasing.library`).

A library is compiled once, when it is loaded: a script of the `EVAL` kind makes all its functions anew on
every call, which cost as much as what they did. But the server keeps libraries, in its file and on its
replicas, so that a library says nothing about the run of the server that it is in. Therefore every process of
the server must be *greeted* first: told its own run id and its replication's name (another one after it was
a replica in between), over the very connection that asked for them. The library keeps these in Lua variables,
which no file and no replica ever gets. Until then it refuses every call, before it does anything, and the
client asks again who it is talking to. So no script ever trusts an index that another run has left behind,
and no connection needs a check of its own. Beside that the library remembers one thing from call to call: the
fleet's clock as it last read it (lua/includes/call.lua).
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
"""How long a thread waits for another that loads: before a Redis that hangs, threads must not queue up. With
the time-out of a load of its own after that (connect.py) a submit still ends in 3.5 s."""
Client = redis.Redis | redis.RedisCluster
FAILURES = (RedisError, RedisClusterException)
"""What redis-py raises when no answer came; the cluster's is not a RedisError."""
_RUN_ID = re.compile(r"run_id:(\w*)")
_REPLICATION = re.compile(r"master_replid:(\w*)")
UNGREETED = "UNGREETED"
_NOT_THERE = ("Function not found", UNGREETED)
"""How errors begin that say that a call did nothing: the library, or its process, is new."""
_EXISTS = "already exists"
_IDLE_SECONDS = 3600.0
"""A library of another version that nobody called for so long is deleted by who loads one."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The library as it is on one run of a server."""

    run_id: str
    library: str
    replication: str = ""
    """A name that a server gets anew when it becomes a master: it may have been a replica in between."""


class Scripts:
    """Runs scripts under one key prefix. Every failure is LeasingUnavailable; nothing is ever sent twice.

    now_ms: a simulator's clock (milliseconds since the epoch) in place of Redis' own. monotonic: of this
    process, seconds; without one as much has passed as Redis' clock says.
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
        # asked once: redis-py's classes are protocols, of which Python asks slowly
        self._cluster = client if isinstance(client, redis.RedisCluster) else None
        self._prefix = prefix
        self._loaded: Loaded | None = None
        self._loading = threading.Lock()
        self._now_ms = now_ms
        self._monotonic = monotonic or (time.monotonic if now_ms is None else None)
        self._sent_at: float | None = None
        """Of the latest call that was answered, monotonic."""

    def run(self, script: str, /, **args: Argument) -> Any:
        """The script's answer: None, an int, a text, or lists of these. args: as its head names them; all of
        them, None for what it reads as nil. Raises BadCall, LeasingUnavailable."""
        values = parameters_of(script).values(args)
        if self._monotonic is None:
            return self._call(script, "", values)
        sent_at, before = self._monotonic(), self._sent_at
        since_us = "" if before is None else max(0, int((sent_at - before) * 1_000_000))
        answer = self._call(script, since_us, values)
        self._sent_at = sent_at
        return answer

    def _call(self, name: str, since_us: int | str, values: Sequence[Any]) -> Any:
        """since_us: since the last call that was answered, empty before the first one."""
        try:
            loaded = self._loaded or self._load_once(None)
            try:
                answer = self._send(loaded, name, since_us, values)
            except ResponseError as error:
                if not str(error).startswith(_NOT_THERE):
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
        """Asks the server for its run id and its replication's name and greets its library with these. Raises
        what is in FAILURES."""
        pool = self._node().connection_pool
        connection: Any = pool.get_connection()

        def ask(*command: str | int) -> Any:
            connection.send_command(*command)
            return connection.read_response()

        try:
            facts = as_text(ask("INFO", "server", "replication"))
            found, replication = _RUN_ID.search(facts), _REPLICATION.search(facts)
            if not found or not found[1]:
                # one name for all runs would make an index of a run before be believed
                raise RedisError("the server does not tell its run id (INFO server)")
            name = library_name(library_code(), pool.connection_kwargs.get("db") or 0)
            loaded = Loaded(found[1], name, replication[1] if replication else "")
            greeting = ("FCALL", f"{name}_greet", 0, loaded.run_id, loaded.replication)
            try:
                ask(*greeting)
            except ResponseError:
                load_library(ask, name)
                ask(*greeting)
        except BaseException:
            connection.disconnect()  # an answer may still be under way
            raise
        finally:
            pool.release(connection)
        self._loaded = loaded
        return loaded

    def _load_once(self, known: Loaded | None) -> Loaded:
        """A worker's threads start together, and one of them loads for all. known: what does not work."""
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
        except MovedError as error:  # it did nothing there
            self._cluster.nodes_manager.move_slot(error)
        return self._ask_holder(self._cluster, command)

    def _ask_holder(self, cluster: redis.RedisCluster, command: tuple[Any, ...]) -> Any:
        """The client's own way follows an ASK: while the fleet's hash slot moves, each call would be sent to
        the node that it moves to, and make keys there which those that still come would meet."""
        node = cluster.get_node_from_key(self._prefix)  # type: ignore[no-untyped-call]
        try:
            return _ask(cluster.get_redis_connection(node), command)
        except (redis.ConnectionError, redis.TimeoutError):  # another may hold the slot by now
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
    """As `execute_command`, without what it does for others (callbacks, measurements, retries: a sixth of the
    call)."""
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response()
    except BaseException as error:
        if not isinstance(error, ResponseError) or isinstance(error, ReadOnlyError):
            # its answer may still come, and would be the next command's; or it leads to a former master
            connection.disconnect()
        raise
    finally:
        pool.release(connection)


def load_library(ask: Callable[..., Any], name: str) -> None:
    """ask: sends one command. Deletes what other versions have left: who still calls it loads it again."""
    try:
        ask("FUNCTION", "LOAD", library_text(name, library_code()))
    except ResponseError as error:
        if _EXISTS not in str(error):  # somebody else was first
            raise
        return
    for found in ask("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARIES}*"):
        other = as_text(next(iter(found.values())) if isinstance(found, dict) else found[1])  # RESP 3, RESP 2
        with suppress(ResponseError):  # somebody else was first here, too
            if other != name and ask("FCALL", f"{other}_idle", 0) > _IDLE_SECONDS:
                ask("FUNCTION", "DELETE", other)


def as_text(answer: Any) -> Any:
    if isinstance(answer, bytes):
        return answer.decode()
    if isinstance(answer, list):
        return [as_text(item) for item in answer]
    return answer
