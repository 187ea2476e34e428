"""``python -m gpu_host.node --handler package.module:run``: a node without Django."""

from __future__ import annotations

import argparse
import logging
import sys

from gpu_host.node.config import ConfigError, add_arguments, config_from
from gpu_host.node.server import Node, StopSignal, stop_after_runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_host.node", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopped = StopSignal()
    try:
        node = Node(config_from(vars(options)))
        node.start()
    except (ConfigError, OSError) as error:
        parser.exit(2, f"gpu_node: {error}\n")
    _say(f"{node.url} serves {node.config.slots} slots")
    stopped.wait()
    stop_after_runs(node, options.grace, _say)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
