from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from verification.proving.main import main
from verification.proving.options import parser


class Command(BaseCommand):
    """For `manage.py help` only: `dispatcher_project.cli.main` runs `prove` without Django."""

    help = "Inject all kinds of faults into a dispatcher under load, and compare the records of all sides."

    def create_parser(self, *_: Any, **__: Any) -> argparse.ArgumentParser:  # type: ignore[override]
        return parser()

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))
