"""The command line of a node: shared by ``manage.py gpu_node`` and ``python -m gpu_host.node``."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_host.node.config import MODES, TOKEN_VARIABLE, ConfigError, NodeConfig, read_handlers

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
        "--token",
        default="",
        help="what every request has to send as bearer token; others on this machine can read a command "
        f"line, so rather --token-file, or {TOKEN_VARIABLE} in the environment",
    )
    parser.add_argument("--token-file", type=Path, help="the token is the first line of this file")
    parser.add_argument(
        "--open",
        action="store_true",
        help="without a token at an address that other machines reach: everything there may run jobs",
    )
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
        token=token_from(options),
        open_to_all=options["open"],
        mode=options["mode"],
        direct_queue=options["direct_queue"],
        push=not options["no_push"],
        log_file=options["log"],
        **read_handlers(options["handler"]),
    )


def token_from(options: Mapping[str, Any]) -> str:
    """The first of option, file and environment that names one; else "". Raises ConfigError."""
    if options["token"]:
        return str(options["token"])
    if options["token_file"] is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        token = options["token_file"].read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token can't be read: {error}") from None
    if not token:
        raise ConfigError(f"{options['token_file']} has no token in its first line")
    return str(token)
