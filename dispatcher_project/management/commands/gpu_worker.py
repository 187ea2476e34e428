from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dispatcher_project.cli.arguments import add_health_port, name, names, positive


class Command(BaseCommand):
    help = (
        "Starts a GPU worker: claims jobs and runs them on GPU servers; with --gpu and --models on this "
        "machine's own GPU, in a process of its own. SIGTERM drains it."
    )
    requires_system_checks = []  # they would load every view and page into a process that has none

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--pool", type=names, help="Only these pools, comma-separated; default: all.")
        parser.add_argument("--host", help="Pinned driver: only the queues of this host.")
        parser.add_argument(
            "--concurrency", type=positive, help="Threads; DISPATCHER_WORKER_THREADS if not given."
        )
        parser.add_argument(
            "--name", default="", help="Shown in Flower; default gpu-<pid>. With --gpu: the server's name."
        )
        parser.add_argument(
            "--gpu", help="This machine's GPU: its index, its UUID (MIG too), or none for the CPU."
        )
        parser.add_argument(
            "--models",
            type=_paths,
            action="extend",
            help="With --gpu: [NAME=]package.module[:ATTRIBUTE], comma-separated "
            "(docs/reference/model_code.md).",
        )
        parser.add_argument(
            "--servers",
            type=Path,
            help="With --gpu: a TOML file of LLM servers that may run here (docs/reference/model_code.md).",
        )
        parser.add_argument(
            "--slots", type=positive, help="With --gpu: jobs at once; default: as many as its models can."
        )
        parser.add_argument(
            "--budget-mb", type=positive, help="With --gpu: use at most so much of its memory."
        )
        parser.add_argument(
            "--machine",
            type=name,
            help="With --gpu: what it is part of; default: the host's name.",
        )
        parser.add_argument(
            "--model-user",
            default="",
            help="With --gpu, started by root: the user that models run as; default: DISPATCHER_MODEL_USER.",
        )
        parser.add_argument("--fleet", help="With --gpu: of a pool that is new.")
        parser.add_argument("--ready-file", type=Path, help="Exists while it takes jobs.")
        add_health_port(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["gpu"] is not None or options["models"] or options["servers"]:
            sys.exit(_pinned(options))
        from dispatcher_project.celery_transport.run import run_gpu_worker

        sys.exit(
            run_gpu_worker(
                pools=options["pool"],
                host=options["host"],
                concurrency=options["concurrency"],
                name=options["name"],
                ready_file=options["ready_file"],
                health_port=options["health_port"],
            )
        )


def _pinned(options: dict[str, Any]) -> int:
    from dispatcher_project.celery_transport.pinned import PinnedOptions, run_pinned_worker

    if options["gpu"] is None or not (options["models"] or options["servers"]):
        raise CommandError("--gpu goes together with --models or --servers")
    if options["host"] or options["concurrency"]:
        raise CommandError("--host and --concurrency are for workers without --gpu; use --name and --slots")
    pools = options["pool"] or [""]
    if len(pools) > 1:
        raise CommandError("a GPU is in one pool")
    return run_pinned_worker(
        PinnedOptions(
            gpu=options["gpu"],
            models=options["models"] or [],
            servers=options["servers"],
            name=options["name"],
            pool=pools[0],
            fleet=options["fleet"],
            machine=options["machine"] or "",
            model_user=options["model_user"],
            slots=options["slots"],
            budget_mb=options["budget_mb"],
            ready_file=options["ready_file"],
            health_port=options["health_port"],
        )
    )


def _paths(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
