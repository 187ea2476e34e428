from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from tests.gpu_host.node import custom_handlers
from tests.gpu_host.node.caller import Caller


@pytest.fixture
def gate() -> Iterator[ModuleType]:
    """`custom_handlers`, whose `held` has not `begun` and waits for its `release`."""
    custom_handlers.begun.clear()
    custom_handlers.release.clear()
    yield custom_handlers
    custom_handlers.release.set()


@pytest.fixture
def start() -> Iterator[Callable[..., Caller]]:
    """``start(slots=1, …)``: a running simulator, stopped with the test."""
    with ExitStack() as stack:

        def begin(**settings: Any) -> Caller:
            if "handlers" not in settings:
                settings.setdefault("handler", "gpu_host.node.simulator:run")
            settings.setdefault(
                "cancel_wait_seconds", 30.0
            )  # the time of a handler's stop is not tested here
            caller = Caller(Node(NodeConfig(**settings)))
            stack.callback(caller.threads.shutdown)
            stack.enter_context(caller.node)
            return caller

        yield begin
