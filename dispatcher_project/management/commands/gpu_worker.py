from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.arguments import positive

from ._arguments import names


class Command(BaseCommand):
    help = "Starts a GPU worker: claims jobs and runs them on GPU servers. SIGTERM drains it."
    requires_system_checks = []  # they would load every view and page into a process that has none

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--pool", type=names, help="Only these pools, comma-separated; default: all.")
        parser.add_argument("--host", help="Pinned driver: only the queues of this host.")
        parser.add_argument(
            "--concurrency", type=positive, help="Threads; DISPATCHER_WORKER_THREADS if not given."
        )
        parser.add_argument("--name", default="", help="Shown in Flower; default gpu-<pid>.")
        parser.add_argument("--ready-file", type=Path, help="Exists while it takes jobs.")

    def handle(self, *args: Any, **options: Any) -> None:
        from dispatcher_project.worker.run import run_gpu_worker

        sys.exit(
            run_gpu_worker(
                pools=options["pool"],
                host=options["host"],
                concurrency=options["concurrency"],
                name=options["name"],
                ready_file=options["ready_file"],
            )
        )
