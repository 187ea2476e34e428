from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from benchmarks.suite.main import main
from benchmarks.suite.options import parser


class Command(BaseCommand):
    """For `manage.py help` only: `dispatcher_project.cli.main` runs `bench` without Django."""

    help = "Compare the dispatcher with the raw limit and its peers."

    def create_parser(self, *_: Any, **__: Any) -> argparse.ArgumentParser:  # type: ignore[override]
        return parser()

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))
