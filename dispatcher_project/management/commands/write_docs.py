from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.cli.write_docs import PATH, lifecycle_page


class Command(BaseCommand):
    help = "Writes the pages of docs/ that are made from code."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        PATH.write_text(lifecycle_page())
        self.stdout.write(f"wrote {PATH}")
