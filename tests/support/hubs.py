"""An event hub on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

NOWHERE = "redis://127.0.0.1:1/0"


def on_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run the test on its own event loop."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run
