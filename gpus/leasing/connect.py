"""Creates Redis clients for leases from a URL.

They never retry: redis-py retries ten times by default, scripts too, and one claim with three lost replies
leased four slots. Timeouts are short, because a worker that waits for Redis runs no job.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from foundation import network
from gpus.leasing.scripts import Client

TIMEOUT_SECONDS = 2.0
FRESH_SECONDS = 0.2
"""A connection that was used within this time is reused without a check."""
MASTER_SECONDS = 3.0
"""How long the master's address is cached before the Sentinels are queried again."""
_DEFAULT_PORT, _DEFAULT_SENTINEL_PORT = 6379, 26379


def connect(url: str, *, timeout_seconds: float | None = None) -> Client:
    """Create a client for a Redis URL; it connects lazily, except to a cluster, whose layout is read at once.

    url: ``redis://``, ``rediss://``, ``unix://``,
    ``redis+sentinel://[:password@]host:port,host:port/master[/db]``, or
    ``redis+cluster://[user:password@]host:port,host:port``. timeout_seconds: of connecting and of each reply,
    for Sentinel and Cluster; None: `TIMEOUT_SECONDS`. Raises ValueError for another scheme, and
    `scripts.FAILURES` if the cluster does not answer.
    """
    parts = urlsplit(url)
    if parts.scheme == "redis+sentinel":
        return _by_sentinel(parts, timeout_seconds)
    if parts.scheme == "redis+cluster":
        return _cluster(parts, timeout_seconds)
    if parts.scheme in ("redis", "rediss", "unix"):
        pool: Any = _Pool.from_url(url, retry=_no_retry(), **_options(keepalive=parts.scheme != "unix"))
        pool.connection_class = _BLOCKING.get(pool.connection_class, pool.connection_class)
        return redis.Redis.from_pool(pool)
    raise ValueError(
        f"{parts.scheme!r} is no Redis scheme: use redis, rediss, unix, redis+sentinel or redis+cluster"
    )


class _Blocking:
    """A redis-py connection with blocking system calls (see `foundation.network`); TLS has to wait in
    Python."""

    released_at = -math.inf

    def was_used_within(self, seconds: float) -> bool:
        """Return True if it is connected and was used within so many seconds."""
        return self._sock is not None and time.monotonic() - self.released_at < seconds  # type: ignore[attr-defined]

    def _connect(self) -> socket.socket:
        sock: socket.socket = super()._connect()  # type: ignore[misc]
        network.use_system_timeouts(sock)
        network.limit_reads(sock, TIMEOUT_SECONDS)
        network.limit_writes(sock, TIMEOUT_SECONDS)
        return sock


class _Pool(redis.ConnectionPool):
    """A pool that reuses fresh connections without redis-py's check for unread data.

    The check releases the GIL in the middle of a claim. If the server closed a fresh connection, the call
    itself fails.
    """

    fresh_seconds = FRESH_SECONDS

    def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        if self.pid == os.getpid():  # else pool and lock belong to the parent process
            with self._lock:
                free: Any = self._available_connections
                if free and isinstance(free[-1], _Blocking) and free[-1].was_used_within(self.fresh_seconds):
                    self._in_use_connections.add(free[-1])
                    return free.pop()
        return super().get_connection()

    def release(self, connection: Any) -> None:
        connection.released_at = time.monotonic()
        super().release(connection)


class _SentinelPool(SentinelConnectionPool):
    """A Sentinel pool that queries the master's address every `master_seconds`, not only when it connects.

    Otherwise an idle process would keep using a former master that comes back, and every process one that
    only the Sentinels cannot reach. Connections to a former master are closed, those in use on release.
    """

    master_seconds = MASTER_SECONDS

    def reset(self) -> None:
        super().reset()  # type: ignore[no-untyped-call]
        self._asked_at, self._refresh_lock = -math.inf, threading.Lock()

    def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        if time.monotonic() - self._asked_at > self.master_seconds and self._refresh_lock.acquire(
            blocking=False
        ):
            try:
                with suppress(RedisError):  # without an answer the known master stays
                    self.get_master_address()  # type: ignore[no-untyped-call]
                self._asked_at = time.monotonic()
            finally:
                self._refresh_lock.release()
        return super().get_connection()


class _BlockingTcp(_Blocking, redis.Connection):
    pass


class _BlockingUnix(_Blocking, redis.UnixDomainSocketConnection):
    pass


_BLOCKING: dict[type, type] = {
    redis.Connection: _BlockingTcp,
    redis.UnixDomainSocketConnection: _BlockingUnix,
}


def _no_retry() -> Retry:
    return Retry(NoBackoff(), 0)


def _options(*, keepalive: bool, timeout_seconds: float | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "socket_timeout": timeout_seconds or TIMEOUT_SECONDS,
        "socket_connect_timeout": timeout_seconds or TIMEOUT_SECONDS,
        "decode_responses": True,
    }
    if keepalive:
        options["socket_keepalive"] = True
    return options


def _by_sentinel(parts: SplitResult, timeout_seconds: float | None) -> redis.Redis:
    master, _, database = parts.path.strip("/").partition("/")
    if not master:
        raise ValueError("a sentinel URL must name its master: redis+sentinel://host:port,host:port/master/0")
    options = _options(keepalive=True, timeout_seconds=timeout_seconds)
    sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
        addresses(parts, _DEFAULT_SENTINEL_PORT), sentinel_kwargs={**options, "retry": _no_retry()}, **options
    )
    client: redis.Redis = sentinel.master_for(
        master,
        connection_pool_class=_SentinelPool,
        db=int(database or 0),
        retry=_no_retry(),
        **credentials(parts),
    )
    return client


def _cluster(parts: SplitResult, timeout_seconds: float | None) -> redis.RedisCluster:
    node: Any = ClusterNode  # redis-py has no types for it
    nodes = [node(host, port) for host, port in addresses(parts, _DEFAULT_PORT)]
    return redis.RedisCluster(
        startup_nodes=nodes,
        retry=_no_retry(),
        **_options(keepalive=True, timeout_seconds=timeout_seconds),
        **credentials(parts),
    )


def addresses(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    """All (host, port) pairs of the URL."""
    found = []
    for address in parts.netloc.rpartition("@")[2].split(","):
        host, colon, port = address.rpartition(":")
        found.append((host, int(port)) if colon else (port, default_port))
    return found


def credentials(parts: SplitResult) -> dict[str, Any]:
    """The URL's user and password as client options, without missing ones."""
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    named = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in named.items() if value}
