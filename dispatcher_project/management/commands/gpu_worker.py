from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dispatcher_project.cli.arguments import HIDDEN_OPTIONS, add_health_port, name, names, positive
from foundation.program import page


class Command(BaseCommand):
    help = (
        "Start a GPU worker, which claims jobs and runs them on GPU servers. With --gpu and --models it is a "
        "pinned worker: it runs models on this machine's own GPU. SIGTERM drains it."
    )
    requires_system_checks = []  # they would load every view and page
    suppressed_base_arguments = HIDDEN_OPTIONS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--pool", type=names, help="only these pools, comma-separated (default: all)")
        parser.add_argument("--host", help="only the servers that are pinned to this host")
        parser.add_argument(
            "--concurrency", type=positive, help="threads (default DISPATCHER_WORKER_THREADS)"
        )
        parser.add_argument(
            "--name", default="", help="name in Flower (default gpu-PID); with --gpu, the name of the server"
        )
        parser.add_argument(
            "--gpu", help="a GPU of this machine: index or UUID, also of a MIG instance; `none` for the CPU"
        )
        parser.add_argument(
            "--models",
            type=_model_paths,
            action="extend",
            help="with --gpu: [NAME=]package.module[:ATTRIBUTE], comma-separated "
            f"({page('docs/reference/model_code.md')})",
        )
        parser.add_argument(
            "--servers",
            type=Path,
            help="with --gpu: TOML file of LLM servers that may run here "
            f"({page('docs/reference/model_code.md')})",
        )
        parser.add_argument(
            "--slots", type=positive, help="with --gpu: concurrent jobs (default: as many as its models can)"
        )
        parser.add_argument(
            "--budget-mb", type=positive, help="with --gpu: limit of the GPU memory that models use"
        )
        parser.add_argument(
            "--machine",
            type=name,
            help="with --gpu: name of the machine (default: the host's name)",
        )
        parser.add_argument(
            "--model-user",
            default="",
            help="with --gpu, started by root: user that models run as (default DISPATCHER_MODEL_USER)",
        )
        parser.add_argument("--fleet", help="with --gpu: fleet of a pool that does not exist yet")
        parser.add_argument("--ready-file", type=Path, help="file that exists while the worker takes jobs")
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
        raise CommandError("--gpu needs --models or --servers, and each of them needs --gpu")
    if options["host"] or options["concurrency"]:
        raise CommandError("--host and --concurrency are for workers without --gpu: use --name and --slots")
    pools = options["pool"] or [""]
    if len(pools) > 1:
        raise CommandError("--pool takes one pool with --gpu: a GPU is in one pool")
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


def _model_paths(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
