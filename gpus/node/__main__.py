"""``python -m gpus.node --handler package.module:run``: a node without Django."""

from __future__ import annotations

import argparse
import logging
import sys

from gpus.node.arguments import add_arguments, config_from
from gpus.node.config import ConfigError
from gpus.node.process import StopSignal
from gpus.node.server import Node


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpus.node", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stopped = StopSignal()
    try:
        node = Node(config_from(vars(options)))
        node.start()
    except (ConfigError, OSError) as error:
        parser.exit(2, f"gpu_node: {error}\n")
    sys.stdout.write(f"{node.url} serves {node.config.slots} slots\n")
    sys.stdout.flush()
    stopped.wait()
    node.drain(options.grace)
    node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
