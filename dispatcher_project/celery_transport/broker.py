"""The broker's transport: kombu's for Redis with cures, and bounded queues.

A message here is a hint (a wake, a tick); losing one costs seconds and doubling one costs nothing. What a
worker must never do is die or start something twice because Redis went away:

- kombu asks a transport that is gone for its parameters and the busy worker exits with an AttributeError;
  here a channel remembers them.
- kombu puts unacknowledged messages back when a connection breaks, so that what is running is started a
  second time within milliseconds; here they are left alone.
- A consumer stays with a master that hangs after Sentinel promoted another; here it asks every two seconds.
- A Redis at its maxmemory refuses messages, and each one that a worker took from it: no wake, no tick, while
  the leases beside it go on. Here such commands are sent once more, as a script that may exceed the limit:
  what they add is bounded.
- After a long outage a worker would look for its broker every thirty seconds; here every two.
- A wait for a message that has begun knows nothing of a queue that is consumed since; here it can be ended.
- Nobody reads the queue of a pool without workers, and the fill goes on sending; here a queue keeps its
  newest `MAX_WAITING_HINTS` messages.

The cures reach into private members of kombu 5.7; tests/dispatcher_project/celery_transport/test_broker.py
pins them.
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
"""How often a consumer asks the Sentinels who the master is."""
_PROCESS_QUEUE = re.compile(r"gpu\..+\.[0-9a-f]{8}")
"""Of one pinned worker's process: nobody reads it any more once that ended."""
_PUTS_BETWEEN_TRIMS = 100


_ANYWAY = "#!lua flags=allow-oom\nreturn redis.call(unpack(ARGV))"
"""Runs one command on a server that is at its maxmemory."""


class Client(Redis):
    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)
        except OutOfMemoryError:
            if args[0] in ("EVAL", "EVALSHA"):
                raise
            return super().execute_command("EVAL", _ANYWAY, 0, *args)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        return Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class Pipeline(RedisPipeline):
    """Nothing of a transaction was done that the server refused."""

    def execute(self, raise_on_error: bool = True) -> Any:
        commands = [args for args, _ in self.command_stack]
        try:
            return super().execute(raise_on_error)
        except OutOfMemoryError:
            if any(args[0] == "EVALSHA" for args in commands):
                raise
            return [self.immediate_execute_command("EVAL", _ANYWAY, 0, *args) for args in commands]


class QoS(kombu_redis.QoS):  # type: ignore[misc]
    restore_at_shutdown = False


class _CuredChannel:
    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._remembered: dict[bool, dict[str, Any]] = {}
        self._puts: Counter[str] = Counter()
        self._waits_on: Any = None
        self._waits_as: int | None = None
        super().__init__(*args, **kwargs)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        transport_of_channel = getattr(self, "connection", None)
        if getattr(transport_of_channel, "client", None) is not None:
            for kind in (False, True):
                self._remembered[kind] = super()._connparams(asynchronous=kind)  # type: ignore[misc]
        return dict(self._remembered[asynchronous])

    def _brpop_start(self, timeout: float | None = None) -> None:
        waiting = self.client.connection  # type: ignore[attr-defined]
        if waiting._sock is not self._waits_on or waiting._sock is None:
            waiting.send_command("CLIENT", "ID")
            try:
                self._waits_as = int(waiting.read_response())
            except ResponseError:  # CLIENT ID is not permitted: its waits can't be ended early
                self._waits_as = None
            self._waits_on = waiting._sock
        super()._brpop_start(timeout)  # type: ignore[misc]

    def end_wait(self) -> None:
        """Ends the wait for a message that goes on now: the next one is for all queues that are consumed by
        then. A hint; never raises."""
        if self._waits_as is None:
            return
        with suppress(RedisError, OSError), self.conn_or_acquire() as client:  # type: ignore[attr-defined]
            client.client_unblock(self._waits_as)

    def _get_client(self) -> Any:
        return Client

    def _queue_bind(self, *args: Any, **kwargs: Any) -> None:
        # refused for a queue that expires (remote control): by a script of kombu's, which it repeats
        with suppress(OutOfMemoryError):
            super()._queue_bind(*args, **kwargs)  # type: ignore[misc]

    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        super()._put(queue, message, **kwargs)  # type: ignore[misc]
        self._puts[queue] += 1
        if self._puts[queue] % _PUTS_BETWEEN_TRIMS == 0:
            with self.conn_or_acquire() as client:  # type: ignore[attr-defined]
                # new messages enter on the left: these are the newest
                client.ltrim(queue, 0, MAX_WAITING_HINTS - 1)


class RedisChannel(_CuredChannel, kombu_redis.Channel):  # type: ignore[misc]
    """For redis://, rediss:// and redis+socket://"""


class SentinelChannel(_CuredChannel, kombu_redis.SentinelChannel):  # type: ignore[misc]
    """For sentinel://"""

    # a Sentinel that is away must not hold up the event loop that asks it; redis-py tries ten times
    sentinel_kwargs: ClassVar = {
        "socket_timeout": 1.0,
        "socket_connect_timeout": 1.0,
        "retry": Retry(NoBackoff(), 0),
    }

    def leave_former_master(self) -> None:
        """Ends the connections to a master that another took the place of, also those that wait for a
        message. Raises what is in `connection_errors` where no Sentinel answers."""
        for pool in (self._pool, self._async_pool):
            if pool is not None:
                pool.get_master_address()  # closes those of its connections that are not in use
        for name in ("client", "subclient"):
            used = getattr(self.__dict__.get(name), "connection", None)
            if used is not None and (used.host, used.port) != used.connection_pool.master_address:
                used.disconnect()


class RedisTransport(kombu_redis.Transport):  # type: ignore[misc]
    Channel = RedisChannel


class SentinelTransport(kombu_redis.SentinelTransport):  # type: ignore[misc]
    """A consumer waits for a message in its event loop, where a master that hangs is no error: kombu finds
    that out connection by connection, which takes half a minute."""

    Channel = SentinelChannel
    _asking: Any = None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        super().register_with_event_loop(connection, loop)
        if self._asking is not None:
            self._asking.cancel()
        self._asking = loop.call_repeatedly(MASTER_SECONDS, self._leave_former_master)

    def _leave_former_master(self) -> None:
        poller: Any = self.cycle
        for channel in poller._channels:
            with suppress(*self.connection_errors):
                channel.leave_former_master()


class PromptConnection(Connection):
    """Looks for a broker that is away every two seconds; kombu's pauses grow to thirty."""

    on_failed_try: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    """Called in the thread that looks: a worker that looks for its broker is alive."""

    def ensure_connection(self, errback: Any = None, max_retries: Any = None, **options: Any) -> Any:
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": 2}

        def failed(*about: Any) -> Any:
            PromptConnection.on_failed_try()
            return errback(*about) if errback else None

        return super().ensure_connection(failed, max_retries, **(pauses | options))


class Queues(CeleryQueues):  # type: ignore[misc]
    """RabbitMQ bounds its queues itself, if it is told when they are declared; Redis does not listen."""

    def __setitem__(self, name: str, queue: Any) -> None:
        queue.max_length = MAX_WAITING_HINTS
        if _PROCESS_QUEUE.fullmatch(name):
            queue.expires = PROCESS_QUEUE_EXPIRES_SECONDS
        super().__setitem__(name, queue)


class Amqp(AMQP):  # type: ignore[misc]
    Connection = PromptConnection
    queues_cls = Queues


TRANSPORTS = {
    "redis": f"{__name__}:RedisTransport",
    "rediss": f"{__name__}:RedisTransport",
    "sentinel": f"{__name__}:SentinelTransport",
}


def register_transports() -> None:
    """From here on the URL schemes of `TRANSPORTS` mean ours, in this process; amqp:// stays kombu's."""
    transport.TRANSPORT_ALIASES.update(TRANSPORTS)
    for scheme in TRANSPORTS:
        transport._transport_cache.pop(scheme, None)
