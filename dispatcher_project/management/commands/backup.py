from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.supervisor.backup import main, parser


class Command(BaseCommand):
    """For `manage.py help` only: `dispatcher_project.cli.main` runs it without Django."""

    help = "Write the database and the data folder's secrets into one file, also while jobs run."

    def create_parser(self, *_: Any, **__: Any) -> argparse.ArgumentParser:  # type: ignore[override]
        return parser()

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))
