from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.cli import settings_page, write_docs


class Command(BaseCommand):
    help = "Writes the pages of docs/ that are made from code."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        pages = {
            write_docs.PATH: write_docs.lifecycle_page(),
            settings_page.PATH: settings_page.settings_page(),
        }
        for path, text in pages.items():
            path.write_text(text)
            self.stdout.write(f"wrote {path}")
