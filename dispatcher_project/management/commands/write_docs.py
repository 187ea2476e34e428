from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.cli.write_docs import pages


class Command(BaseCommand):
    help = "Writes the pages of docs/ that are made from code."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        for path, make in pages().items():
            path.write_text(make())
            self.stdout.write(f"wrote {path}")
