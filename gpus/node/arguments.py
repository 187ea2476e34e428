"""The command line of a node: shared by ``manage.py gpu_node`` and ``python -m gpus.node``."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from gpus.node.config import MODES, NodeConfig, read_handlers

GRACE_SECONDS = 30.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--handler",
        action="append",
        required=True,
        metavar="[MODEL=]PACKAGE.MODULE[:ATTRIBUTE]",
        help="what to run: a function, a class, a module, or a module with MODELS; repeat it with names to "
        "serve several models on the same slots",
    )
    parser.add_argument("--slots", type=int, default=1, help="runs at one time (default: 1)")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one (default: 9000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--mode", choices=MODES, default="sync", help="answer with the result, or with an id to poll"
    )
    parser.add_argument(
        "--no-push", action="store_true", help="never send results to the caller's X-Callback-Url"
    )
    parser.add_argument(
        "--log", default="", help="append starts, ends and refusals to this file (JSON lines)"
    )
    parser.add_argument(
        "--direct-queue", type=int, default=10, help="direct callers that may wait (default: 10)"
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_SECONDS,
        help=f"seconds that runs get to end when stopped (default: {GRACE_SECONDS:g})",
    )


def config_from(options: Mapping[str, Any]) -> NodeConfig:
    """Raises ConfigError."""
    return NodeConfig(
        slots=options["slots"],
        port=options["port"],
        host=options["host"],
        mode=options["mode"],
        direct_queue=options["direct_queue"],
        push=not options["no_push"],
        log_file=options["log"],
        **read_handlers(options["handler"]),
    )
