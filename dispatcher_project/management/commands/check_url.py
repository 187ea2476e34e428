from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.cli.smoke_check import main, parser


class Command(BaseCommand):
    """For `manage.py help` only: `dispatcher_project.cli.main` runs it without Django."""

    help = (
        "Try an installation from outside with nothing but an API key (`gpu-dispatcher check`): TLS, "
        "readiness, the key, an unbuffered event stream, a job and its result. Exit status: 0 all well, 1 "
        "warnings or skipped steps, 2 errors."
    )

    def create_parser(self, *_: Any, **__: Any) -> argparse.ArgumentParser:  # type: ignore[override]
        return parser()

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))
