from __future__ import annotations

import sys

from django.core.management.base import BaseCommand

from dispatcher_project.checks import main


class Command(BaseCommand):
    """For `manage.py help`, and in place of Django's own `test`: manage.py runs the gate without Django."""

    help = "Static checks, then pytest on SQLite and PostgreSQL; with arguments only pytest, with them."

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))
