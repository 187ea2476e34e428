"""An asyncio client to hear announcements with, for every kind of REDIS_URL (`gpus.leasing.connect`)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from gpus.leasing.connect import addresses, credentials

_OPTIONS: dict[str, Any] = {"socket_connect_timeout": 2, "socket_timeout": 5}


def subscriber_client(url: str, turn: int = 0) -> Redis:
    """turn: counts up with each try, so that a cluster node that is gone is not asked for ever. Any node
    will do: PUBLISH reaches all of them. Raises ValueError for a URL it can't read."""
    parts = urlsplit(url)
    options = {**_OPTIONS, "retry": Retry(NoBackoff(), 0)}
    if parts.scheme == "redis+cluster":
        nodes = addresses(parts, 6379)
        host, port = nodes[turn % len(nodes)]
        return Redis(host=host, port=port, **credentials(parts), **options)
    if parts.scheme == "redis+sentinel":
        master = parts.path.strip("/").partition("/")[0]
        never = {"retry": options["retry"]}  # redis-py asks each Sentinel that is away ten times
        sentinel: Any = Sentinel(  # type: ignore[no-untyped-call]
            addresses(parts, 26379), sentinel_kwargs=_OPTIONS | never, **_OPTIONS
        )
        client: Redis = sentinel.master_for(master, **credentials(parts), **options)
        return client
    return Redis.from_url(url, **options)
