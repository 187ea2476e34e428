"""A node's process: it starts, registers itself on request, and serves until a signal stops it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpu_host.node.config import config_from
from gpu_host.node.registering import start_registering
from gpu_host.node.server import Node, StopSignal, stop_after_runs


def serve(options: Mapping[str, Any], say: Callable[[str], object]) -> None:
    """Run a node until SIGTERM or SIGINT. Call it in the main thread. Raises ConfigError; OSError if the port
    is taken.

    options: of `add_arguments` and `add_register_arguments`. say: receives lines for the terminal."""
    stopped = StopSignal()
    node = Node(config_from(options))
    node.start()
    say(f"{node.url} serves {node.config.slots} slots")
    try:
        registering = start_registering(options, node, say)
    except BaseException:
        node.stop()
        raise
    stopped.wait()
    if registering is not None:
        registering.stop()
    stop_after_runs(node, options["grace"], say)
