"""``python -m gpu_host.node.demo``: the demo fleet in one process, simulated GPU servers for four models.

Once all servers listen, ``--ready-file`` holds ``{"pid", "servers": [{"server", "model", "endpoint", "slots",
"model_fields"}]}``, which is also printed. Ends on SIGTERM or SIGINT, and with its parent.

With ``--move`` it uses other ports if one of its ports is taken; started again with the same file, it uses
the ports in that file, where its servers are registered. GPU_NODE_TOKEN in the environment: their token.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from gpu_host.node.config import TOKEN_VARIABLE, ConfigError
from gpu_host.node.server import StopSignal, die_with_parent
from gpu_host.node.simulator import DEFAULT_SECONDS, DemoServer, demo_fleet

_MOVES = 20
_LAST_PORT = 65_535


def main() -> int:
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m gpu_host.node.demo", description=__doc__)
    parser.add_argument("--port-base", type=int, default=0, help="first port; 0 takes free ones")
    parser.add_argument(
        "--move", action="store_true", help="use other ports in a row if one of them is taken"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--ready-file", type=Path, help="written once all servers listen")
    for model in DEFAULT_SECONDS:
        parser.add_argument(
            f"--{model}", type=int, default=2, metavar="SLOTS", help="0: no server for this model"
        )
    options = parser.parse_args()
    stopped = StopSignal()
    slots = {model: getattr(options, model) for model in DEFAULT_SECONDS if getattr(options, model)}
    try:
        fleet = _start(options, slots)
    except (ConfigError, OSError) as error:
        parser.exit(2, f"demo: {error}\n")
    text = json.dumps({"pid": os.getpid(), "servers": [server.entry() for server in fleet]})
    if options.ready_file:
        _write(options.ready_file, text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    stopped.wait()
    for server in fleet:
        server.node.stop()
    return 0


def _start(options: argparse.Namespace, slots: dict[str, int]) -> list[DemoServer]:
    """Start the servers; only listening shows whether a port is free. Raises OSError."""
    base, token = options.port_base, os.environ.get(TOKEN_VARIABLE, "")
    if options.move and options.ready_file and options.ready_file.exists():
        base = _port_of_before(options.ready_file)
    for _ in range(_MOVES if options.move else 0):
        try:
            return demo_fleet(slots, port_base=base, host=options.host, token=token)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            with socket.create_server((options.host, 0)) as probe:
                base = min(probe.getsockname()[1], _LAST_PORT - len(slots))
    return demo_fleet(slots, port_base=base, host=options.host, token=token)


def _port_of_before(ready_file: Path) -> int:
    return urlsplit(json.loads(ready_file.read_text())["servers"][0]["endpoint"]).port or 0


def _write(path: Path, text: str) -> None:
    """Write the file atomically: its reader waits for it to exist."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
