"""A node's configuration, and its command line. Standard library only: a node runs without Django."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from foundation.threaded_http import DEFAULT_TIMES, RequestTimes

TOKEN_VARIABLE = "GPU_NODE_TOKEN"
MODES = ("sync", "async", "auto")
RESERVED_NAMES = frozenset({"health", "status", "cancel", "runs", "faults"})
GRACE_SECONDS = 30.0


class ConfigError(ValueError):
    """The configuration is not valid; the message says what to change."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of a node.

    handler: ``package.module:run``, served at every path; a module with ``MODELS`` is served as those.
    handlers: the same by model, each at ``/<model>/…``; all share the slots. port: 0 takes a free one.

    mode: ``sync`` answers with the result, ``async`` answers at once with an id to poll, ``auto`` answers
    with the result if it comes within `answer_within_seconds`. A request with ``Prefer: respond-async``,
    which the dispatcher sends for an async model, is answered as in ``auto`` if the mode is ``sync``.

    direct_queue: how many direct callers may wait; they go first. retry_after_seconds: the Retry-After of a
    refused dispatcher, whole seconds.

    keep_runs, keep_bytes, keep_seconds: how many ended runs are kept for polls and repeated requests, with
    how many bytes of results, and how long; the latest `slots` runs are always kept.

    log_runs: lines of ``GET /runs``. log_file: starts, ends and refusals of runs are appended to it as JSON
    lines; empty: no file. cancel_wait_seconds: how long a cancel waits for the handler to stop. push: send
    results to ``X-Callback-Url``; push_pause_seconds: before the second try, doubled for each further one.
    max_connections: each has a thread; a request waits on its own. request_times: of connections.

    max_slot_names: slots whose last fence is remembered. tidy_seconds: how often files of old runs are
    removed.

    token: every request must send ``Authorization: Bearer <token>``; empty: none. A node that other machines
    can reach needs one, unless it is `open_to_all`.
    """

    handler: str = ""
    handlers: Mapping[str, str] = field(default_factory=dict)
    slots: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    mode: str = "sync"
    direct_queue: int = 10
    answer_within_seconds: float = 1.0
    retry_after_seconds: int = 1
    keep_runs: int = 1000
    keep_bytes: int = 64 * 1024 * 1024
    keep_seconds: float = 3600.0
    log_runs: int = 10_000
    log_file: str = ""
    cancel_wait_seconds: float = 0.5
    max_body_bytes: int = 32 * 1024 * 1024
    max_connections: int = 512
    push: bool = True
    push_pause_seconds: float = 0.5
    request_times: RequestTimes = DEFAULT_TIMES
    max_slot_names: int = 4096
    tidy_seconds: float = 60.0
    token: str = field(default="", repr=False)
    open_to_all: bool = False

    def __post_init__(self) -> None:
        if bool(self.handler) == bool(self.handlers):
            raise ConfigError("give one handler for every path, or handlers by model: not both, not none")
        if self.mode not in MODES:
            raise ConfigError(f"mode is one of {', '.join(MODES)}, not {self.mode!r}")
        if self.slots < 1:
            raise ConfigError(f"a node has at least 1 slot, not {self.slots}")
        if self.direct_queue < 0:
            raise ConfigError(f"direct_queue must not be negative, it is {self.direct_queue}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is 0 to 65535, not {self.port}")
        if self.max_connections < 1:
            raise ConfigError(f"a node has at least 1 connection, not {self.max_connections}")
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise ConfigError("the token must be printable ASCII without spaces")
        if not (self.token or self.open_to_all or is_loopback(self.host)):
            raise ConfigError(
                f"other machines reach {self.host or 'every address'}: give a token (--token-file, --token "
                f"or {TOKEN_VARIABLE}), or --open where only trusted machines are in the network"
            )
        for model in self.handlers:
            check_name(model)

    @property
    def module_name(self) -> str:
        """The model's name where the handler has none of its own: ``flux`` for ``models.flux:run``."""
        return self.handler.partition(":")[0].rpartition(".")[2]


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_name(model: str) -> None:
    """Raise ConfigError unless a model can be served under this name."""
    if model in RESERVED_NAMES or "/" in model or not model:
        raise ConfigError(f"a model can't be served under the name {model!r}")


def read_handlers(texts: list[str]) -> dict[str, Any]:
    """Return the handler fields of a config from ``package.module:run`` or repeated
    ``model=package.module:run``.

    >>> read_handlers(["flux=models.flux:run"])
    {'handlers': {'flux': 'models.flux:run'}}"""
    named = [text.partition("=") for text in texts if "=" in text]
    if not named and len(texts) == 1:
        return {"handler": texts[0]}
    if len(named) != len(texts):
        raise ConfigError("several handlers need names: --handler model=package.module:run")
    if len({name for name, _, _ in named}) != len(named):
        raise ConfigError("two handlers have the same name")
    return {"handlers": {name: path for name, _, path in named}}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of a node to a command line."""
    parser.add_argument(
        "--handler",
        action="append",
        required=True,
        metavar="[MODEL=]PACKAGE.MODULE[:ATTRIBUTE]",
        help="a function, a class, a module, or a module with MODELS; repeat it with names to serve several "
        "models on the same slots",
    )
    parser.add_argument("--slots", type=int, default=1, help="concurrent runs (default: 1)")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free port (default: 9000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--token",
        default="",
        help="bearer token that every request must send; other users of this machine can read a command "
        f"line, so prefer --token-file, or {TOKEN_VARIABLE} in the environment",
    )
    parser.add_argument("--token-file", type=Path, help="read the token from the first line of this file")
    parser.add_argument(
        "--open",
        action="store_true",
        help="allow an address that other machines can reach without a token: any of them may run jobs",
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
        help=f"seconds that runs have to end when the node stops (default: {GRACE_SECONDS:g})",
    )


def config_from(options: Mapping[str, Any]) -> NodeConfig:
    """Return the configuration of a command line. Raises ConfigError."""
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
    """Return the first token of option, file and environment; "" if none has one. Raises ConfigError."""
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
