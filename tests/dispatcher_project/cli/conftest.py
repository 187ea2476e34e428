"""The operators' commands on a database and a real lease layer, run in this process."""

from __future__ import annotations

from tests.support.queue_harness import queue
from tests.support.terminal import terminal

__all__ = ["queue", "terminal"]
