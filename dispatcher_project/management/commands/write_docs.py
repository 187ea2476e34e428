from __future__ import annotations

import subprocess
import sys
from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.documentation.written import write_files, written_files


class Command(BaseCommand):
    help = "Write the files that are generated from code: reference pages, the client's options of a submit."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        for path in write_files(written_files(), _start_again):
            self.stdout.write(f"wrote {path}")


def _start_again() -> None:
    subprocess.run([sys.executable, *sys.orig_argv[1:]], check=True)
