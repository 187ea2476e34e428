from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.documentation.written import written_files


class Command(BaseCommand):
    help = "Write the files that are generated from code: reference pages, the client's options of a submit."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        for path, make in written_files().items():
            path.write_text(make())
            self.stdout.write(f"wrote {path}")
