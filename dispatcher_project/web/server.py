"""The uvicorn server of `python -m dispatcher_project.web` and of the tests, with the limits of
`web.protocol`."""

from __future__ import annotations

import asyncio
import errno
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from dispatcher_project.supervisor.notify import READY, notify
from dispatcher_project.web.memory import HeapTrimmer
from dispatcher_project.web.protocol import BoundedProtocol, Connections, Reason, WebLimits, within_heads

log = structlog.get_logger(__name__)

RESERVED_DESCRIPTORS = 256
"""Kept free of connections: for database, Redis, logs and long bodies in files."""
MAX_DESCRIPTORS = 65_536
BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""
_TICKS = 10
"""uvicorn's ticks per second."""
CUT_SECONDS = 0.5
"""Requests are cut off so long before the end of the grace, at which uvicorn reports each as an error."""
_ANSWER_SECONDS = 0.2
"""For the answers of requests that are cut off, before their connections are closed."""
_WRITE_SECONDS = 10.0
"""Shortest time between two writes of ended connections to the counters of /metrics."""

Count = Callable[[Mapping[str, int]], None]


class BoundedServer(uvicorn.Server):
    """uvicorn's server, which ends overdue connections and counts them.

    count: writes the ended connections by reason; called in a thread.
    """

    def __init__(self, config: uvicorn.Config, connections: Connections, count: Count) -> None:
        super().__init__(config)
        self.connections = connections
        self._count = count
        self._written_at = time.monotonic()
        self._heap = HeapTrimmer()

    async def startup(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_exception)
        await super().startup(sockets)
        if self.started:  # it listens: on a port that another process took, uvicorn exits
            notify(READY)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self.connections.sweep()
            self._write_ended()
            self._heap.tick()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop accepting, let requests end for the grace, and cut off the rest."""
        grace = self.config.timeout_graceful_shutdown
        if grace is None:
            await super().shutdown(sockets)
            return
        timer = asyncio.get_running_loop().call_later(max(grace - CUT_SECONDS, 0.0), self._cut_requests)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _cut_requests(self) -> None:
        tasks = list(self.server_state.tasks)
        log.info("web_requests_cut", requests=len(tasks), open=len(self.connections))
        for task in tasks:
            task.cancel()
        asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self.connections.drop_all)

    def _write_ended(self) -> None:
        ended, now = self.connections.ended, time.monotonic()
        if not ended or now - self._written_at < _WRITE_SECONDS:
            return
        self._written_at, self.connections.ended = now, Counter()
        log.warning("web_connections_ended", open=len(self.connections), **ended)
        asyncio.get_running_loop().run_in_executor(None, self._count, ended)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Without a free descriptor asyncio pauses accepting for a second, and reports each failed accept
        here."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        if not self.connections.ended[Reason.NO_DESCRIPTORS]:
            log.error("no_file_descriptor_left", open=len(self.connections))
        self.connections.free_descriptors()


def make_server(
    application: Any,
    limits: WebLimits,
    *,
    host: str,
    port: int,
    count: Count = lambda ended: None,
    **options: Any,
) -> BoundedServer:
    """Make the server. application: an ASGI application, or ``module:name``. options: for
    `uvicorn.Config`."""
    config = uvicorn.Config(
        application,
        host=host,
        port=port,
        ws="none",
        backlog=BACKLOG,
        access_log=False,
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]  # it goes to call_later
        **options,
    )
    config.load()
    served = config.loaded_app
    is_proxy = served.trusted_hosts.__contains__ if isinstance(served, ProxyHeadersMiddleware) else None
    connections = Connections(limits, is_proxy or (lambda address: False))
    config.loaded_app = within_heads(served, limits)
    config.http_protocol_class = partial(BoundedProtocol, connections)  # type: ignore[assignment]
    return BoundedServer(config, connections, count)


def within_descriptors(limits: WebLimits) -> WebLimits:
    """Raise the process's soft limit of file descriptors to its hard one, and return the limits with as many
    connections as leave `RESERVED_DESCRIPTORS` free."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return limits
    room = max(soft - RESERVED_DESCRIPTORS, soft // 2, 1)
    if room >= limits.connections:
        return limits
    log.warning("web_connections_lowered", to=room, wanted=limits.connections, descriptors=soft)
    return replace(limits, connections=room)
