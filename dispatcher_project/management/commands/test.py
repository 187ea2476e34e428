from __future__ import annotations

import sys

from django.core.management.base import BaseCommand

from dispatcher_project.checks import main


class Command(BaseCommand):
    """For `manage.py help`, instead of Django's: `dispatcher_project.cli.main` runs `test` without Django."""

    help = "Run the static checks, then pytest on SQLite and PostgreSQL; with arguments only pytest."

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))
