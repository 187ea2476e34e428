"""Operations on the Redis of the system on trial: flush it, fill it up, lift the limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpus.leasing.connect import connect


def flush(url: str) -> None:
    """Delete all keys of the server (FLUSHALL)."""
    with _client(url) as client:
        client.flushall()


def fill_up(url: str) -> str:
    """Lower the memory limit below the memory in use; return the former limit."""
    with _client(url) as client:
        before = str(client.config_get("maxmemory")["maxmemory"])
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 0.9))
    return before


def refused_writes(url: str) -> int:
    """Return the number of commands answered with OOM since the server started."""
    with _client(url) as client:
        return int(client.info("errorstats").get("errorstat_OOM", {}).get("count", 0))


def set_max_memory(url: str, limit: str) -> None:
    """Set the server's `maxmemory`. limit: as in Redis' configuration, such as `100mb`; `0`: none."""
    with _client(url) as client:
        client.config_set("maxmemory", limit)


@contextmanager
def _client(url: str) -> Iterator[Any]:
    client: Any = connect(url)
    try:
        yield client
    finally:
        client.close()
