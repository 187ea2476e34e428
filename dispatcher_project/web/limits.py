"""What connections may cost, and how many a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from dispatcher_project.settings.dispatcher import DispatcherSettings

log = structlog.get_logger(__name__)

RESERVED_DESCRIPTORS = 256
"""For database, Redis, logs and long bodies in files."""
MOST_DESCRIPTORS = 65_536


@dataclass(frozen=True, slots=True)
class WebLimits:
    """See `DISPATCHER_WEB_*` in dispatcher_project/settings/dispatcher.py."""

    connections: int = 4096
    per_address: int = 512
    head_seconds: float = 10.0
    idle_seconds: float = 5.0
    read_seconds: float = 30.0
    unsent_bytes: int = 128 * 1024 * 1024
    head_bytes: int = 64 * 1024
    url_bytes: int = 16 * 1024
    headers: int = 100

    @classmethod
    def of(cls, settings: DispatcherSettings) -> WebLimits:
        return cls(
            connections=settings.web_connections,
            per_address=settings.web_connections_per_address,
            head_seconds=settings.web_head_seconds,
            idle_seconds=settings.web_idle_seconds,
            read_seconds=settings.web_read_seconds,
            unsent_bytes=settings.web_unsent_bytes,
            head_bytes=settings.web_head_bytes,
            url_bytes=settings.web_url_bytes,
            headers=settings.web_headers,
        )


def within_descriptors(limits: WebLimits) -> WebLimits:
    """Raise this process' soft limit of file descriptors to its hard one, and return limits that fit into it,
    so that connections never take the last one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
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
