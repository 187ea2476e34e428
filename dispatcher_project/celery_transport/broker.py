"""The broker transport: kombu's Redis transport with fixes, and queues of bounded length.

A message is a hint (a wake, a tick): a lost one costs seconds, a duplicate costs nothing. But a lost Redis
must not end a worker or start a task twice:

- kombu reads connection parameters from a closed transport, and a busy worker exits with an AttributeError;
  here a channel keeps them.
- kombu requeues unacknowledged messages when a connection breaks, which starts running tasks a second time
  within milliseconds; here they are not requeued.
- A consumer stays with a hanging master after Sentinel has promoted another; here it asks every two seconds.
- A Redis at maxmemory refuses to publish and to consume messages, while the leases beside them still work.
  Here such commands are sent again as a script that may exceed the limit; the memory they add is bounded.
- After a long outage kombu reconnects every thirty seconds; here every two.
- A blocking read does not include queues that are consumed after it began; here it can be ended.
- The queue of a pool without workers grows, because the fill keeps sending; here a queue keeps its newest
  `MAX_WAITING_HINTS` messages.

The fixes use private members of kombu 5.7, which tests/dispatcher_project/celery_transport/test_broker.py
pins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from celery.app.amqp import AMQP
from celery.app.amqp import Queues as CeleryQueues
from kombu import Connection, transport
from kombu.transport import redis as kombu_redis
from redis import Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline as RedisPipeline
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError
from redis.retry import Retry

MAX_WAITING_HINTS = 1_000
PROCESS_QUEUE_EXPIRES_SECONDS = 3600.0
MASTER_SECONDS = 2.0
"""How often a consumer asks the Sentinels for the master's address."""
_PROCESS_QUEUE = re.compile(r"gpu\..+\.[0-9a-f]{8}")
"""The queue of one process of a pinned worker, without a reader once the process has ended."""
_PUTS_BETWEEN_TRIMS = 100


_ALLOW_OOM = "#!lua flags=allow-oom\nreturn redis.call(unpack(ARGV))"
"""Runs one command on a server at its maxmemory."""


class Client(Redis):
    """Repeats a command that was refused for lack of memory, with `_ALLOW_OOM`."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)
        except OutOfMemoryError:
            if args[0] in ("EVAL", "EVALSHA"):
                raise
            return super().execute_command("EVAL", _ALLOW_OOM, 0, *args)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        return Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class Pipeline(RedisPipeline):
    """Repeats the commands of a refused transaction; none of them was executed."""

    def execute(self, raise_on_error: bool = True) -> Any:
        commands = [args for args, _ in self.command_stack]
        try:
            return super().execute(raise_on_error)
        except OutOfMemoryError:
            if any(args[0] == "EVALSHA" for args in commands):
                raise
            return [self.immediate_execute_command("EVAL", _ALLOW_OOM, 0, *args) for args in commands]


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    """Does not requeue unacknowledged messages at shutdown."""

    restore_at_shutdown = False


class _FixedChannel:
    """Mixin with the fixes for kombu's Redis channels."""

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._kept_parameters: dict[bool, dict[str, Any]] = {}
        self._puts: Counter[str] = Counter()
        self._waiting_socket: Any = None
        self._waiting_client_id: int | None = None
        self._kept_client: Any = None
        super().__init__(*args, **kwargs)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        transport_of_channel = getattr(self, "connection", None)
        if getattr(transport_of_channel, "client", None) is not None:
            for kind in (False, True):
                self._kept_parameters[kind] = super()._connparams(asynchronous=kind)  # type: ignore[misc]
        return dict(self._kept_parameters[asynchronous])

    def _brpop_start(self, timeout: float | None = None) -> None:
        waiting = self.client.connection  # type: ignore[attr-defined]
        if waiting._sock is not self._waiting_socket or waiting._sock is None:
            waiting.send_command("CLIENT", "ID")
            try:
                self._waiting_client_id = int(waiting.read_response())
            except ResponseError:  # CLIENT ID is not permitted: waits can't be ended early
                self._waiting_client_id = None
            self._waiting_socket = waiting._sock
        super()._brpop_start(timeout)  # type: ignore[misc]

    def end_wait(self) -> None:
        """End the current blocking read, so that the next one includes all consumed queues. Never raises."""
        if self._waiting_client_id is None:
            return
        with suppress(RedisError, OSError), self.conn_or_acquire() as client:  # type: ignore[attr-defined]
            client.client_unblock(self._waiting_client_id)

    def _get_client(self) -> Any:
        return Client

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return the client of the channel's current pool. kombu makes one for each command, which costs
        more than the command."""
        if asynchronous:
            return super()._create_client(asynchronous)  # type: ignore[misc]
        if getattr(self._kept_client, "connection_pool", None) is not self.pool:  # type: ignore[attr-defined]
            self._kept_client = super()._create_client()  # type: ignore[misc]
        return self._kept_client

    def _queue_bind(self, *args: Any, **kwargs: Any) -> None:
        # refused for expiring queues (remote control) by a script of kombu, which kombu repeats
        with suppress(OutOfMemoryError):
            super()._queue_bind(*args, **kwargs)  # type: ignore[misc]

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        super()._put(queue, message, **kwargs)  # type: ignore[misc]
        self._puts[queue] += 1
        if self._puts[queue] % _PUTS_BETWEEN_TRIMS == 0:
            with self.conn_or_acquire() as client:  # type: ignore[attr-defined]
                # new messages enter on the left: these are the newest
                client.ltrim(queue, 0, MAX_WAITING_HINTS - 1)


class RedisChannel(_FixedChannel, kombu_redis.Channel):  # type: ignore[misc]
    """The channel for redis://, rediss:// and redis+socket://."""


class SentinelChannel(_FixedChannel, kombu_redis.SentinelChannel):  # type: ignore[misc]
    """The channel for sentinel://."""

    # an unreachable Sentinel must not block the event loop; redis-py retries ten times
    sentinel_kwargs: ClassVar = {
        "socket_timeout": 1.0,
        "socket_connect_timeout": 1.0,
        "retry": Retry(NoBackoff(), 0),
    }

    def leave_former_master(self) -> None:
        """Close the connections to a former master, also those in a blocking read.

        Raises one of `connection_errors` if no Sentinel answers.
        """
        for pool in (self._pool, self._async_pool):
            if pool is not None:
                pool.get_master_address()  # closes its unused connections
        for name in ("client", "subclient"):
            used = getattr(self.__dict__.get(name), "connection", None)
            if used is not None and (used.host, used.port) != used.connection_pool.master_address:
                used.disconnect()


class RedisTransport(kombu_redis.Transport):  # type: ignore[misc]
    """kombu's transport with `RedisChannel`."""

    Channel = RedisChannel


class SentinelTransport(kombu_redis.SentinelTransport):  # type: ignore[misc]
    """Looks regularly for a new master. A hanging master is no error to a consumer that waits in its event
    loop; kombu notices it connection by connection, which takes half a minute."""

    Channel = SentinelChannel
    _timer: Any = None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_repeatedly(MASTER_SECONDS, self._leave_former_master)

    def _leave_former_master(self) -> None:
        poller: Any = self.cycle
        for channel in poller._channels:
            with suppress(*self.connection_errors):
                channel.leave_former_master()


class PromptConnection(Connection):
    """Reconnects every two seconds; kombu's pauses grow to thirty."""

    on_failed_try: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Called after each failed connection attempt, in its thread: a worker that reconnects is alive."""

    def ensure_connection(self, errback: Any = None, max_retries: Any = None, **options: Any) -> Any:
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": 2}

        def failed(*about: Any) -> Any:
            PromptConnection.on_failed_try()
            return errback(*about) if errback else None

        return super().ensure_connection(failed, max_retries, **(pauses | options))


class Queues(CeleryQueues):  # type: ignore[misc]
    """Declares each queue with a maximum length. RabbitMQ enforces it; for Redis the channel trims the
    queue."""

    def __setitem__(self, name: str, queue: Any) -> None:
        queue.max_length = MAX_WAITING_HINTS
        if _PROCESS_QUEUE.fullmatch(name):
            queue.expires = PROCESS_QUEUE_EXPIRES_SECONDS
        super().__setitem__(name, queue)


class Amqp(AMQP):  # type: ignore[misc]
    """Celery's AMQP settings with our connection and queues."""

    Connection = PromptConnection
    queues_cls = Queues


TRANSPORTS = {
    "redis": f"{__name__}:RedisTransport",
    "rediss": f"{__name__}:RedisTransport",
    "sentinel": f"{__name__}:SentinelTransport",
}


def register_transports() -> None:
    """Use our transports for the URL schemes of `TRANSPORTS` in this process; amqp:// stays kombu's."""
    transport.TRANSPORT_ALIASES.update(TRANSPORTS)
    for scheme in TRANSPORTS:
        transport._transport_cache.pop(scheme, None)
