from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dispatcher_project.cli.arguments import add_health_port, names, positive
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE

_QUEUES = (SWEEPS_QUEUE, CALLBACKS_QUEUE)


class Command(BaseCommand):
    help = "Starts a worker for the dispatcher's own queues: sweeps, callbacks. SIGTERM stops it."
    requires_system_checks = []  # they would load every view and page into a process that has none

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--queues", type=names, required=True, help="sweeps, callbacks or both.")
        parser.add_argument("--concurrency", type=positive, default=4, help="Threads; default 4.")
        parser.add_argument("--name", default="", help="Shown in Flower; default <queues>-<pid>.")
        parser.add_argument("--ready-file", type=Path, help="Exists while it takes tasks.")
        add_health_port(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        from dispatcher_project.celery_transport.run import run_queue_worker

        # it would wait for ever where nobody sends anything
        if unknown := [queue for queue in options["queues"] if queue not in _QUEUES]:
            raise CommandError(f"unknown queue {', '.join(unknown)}: there are {' and '.join(_QUEUES)}")
        sys.exit(
            run_queue_worker(
                options["queues"],
                concurrency=options["concurrency"],
                name=options["name"],
                ready_file=options["ready_file"],
                health_port=options["health_port"],
            )
        )
