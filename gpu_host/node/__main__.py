"""``python -m gpu_host.node --handler package.module:run``: a GPU node without Django."""

from __future__ import annotations

import argparse
import logging
import sys

from gpu_host.node.config import ConfigError, add_arguments
from gpu_host.node.registering import add_register_arguments
from gpu_host.node.serving import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_host.node", description=__doc__)
    add_arguments(parser)
    add_register_arguments(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        serve(vars(options), _print)
    except (ConfigError, OSError) as error:
        parser.exit(2, f"gpu_node: {error}\n")
    return 0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
