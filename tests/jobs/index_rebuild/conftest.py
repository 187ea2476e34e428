"""A fleet in the database with a real lease layer, and a clock moved by the test."""

from __future__ import annotations

from tests.support.queue_harness import queue
from tests.support.servers.health_server import gpu

__all__ = ["gpu", "queue"]
