from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dispatcher_project.cli.arguments import HIDDEN_OPTIONS, add_health_port, names, positive
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE

_QUEUES = (SWEEPS_QUEUE, CALLBACKS_QUEUE, WORKFLOWS_QUEUE)


class Command(BaseCommand):
    help = "Start a worker for the dispatcher's own queues: sweeps, callbacks, workflows. SIGTERM stops it."
    requires_system_checks = []  # they would load every view and page
    suppressed_base_arguments = HIDDEN_OPTIONS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--queues", type=names, required=True, help="one or several, such as callbacks,workflows"
        )
        parser.add_argument("--concurrency", type=positive, default=4, help="threads (default 4)")
        parser.add_argument("--name", default="", help="name in Flower (default QUEUES-PID)")
        parser.add_argument("--ready-file", type=Path, help="file that exists while the worker takes tasks")
        add_health_port(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        from dispatcher_project.celery_transport.run import run_queue_worker

        # no message is ever sent to an unknown queue
        if unknown := [queue for queue in options["queues"] if queue not in _QUEUES]:
            raise CommandError(f"no queue is named {', '.join(unknown)}; there are {', '.join(_QUEUES)}")
        sys.exit(
            run_queue_worker(
                options["queues"],
                concurrency=options["concurrency"],
                name=options["name"],
                ready_file=options["ready_file"],
                health_port=options["health_port"],
            )
        )
