from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from dispatcher_project.cli.arguments import positive

NOTHING_TO_CHECK = 3


class Command(BaseCommand):
    help = (
        "Checks a GPU of this machine as a pinned worker would use it: readings, swaps of real models, a "
        "sticky CUDA error. Exit status 0: well, 1: not, 3: there is no GPU, or no torch to check it with."
    )
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--gpu", default="0", help="Index or UUID; none: the same on the CPU (default: 0)."
        )
        parser.add_argument("--swaps", type=positive, default=500, help="Loads of models (default: 500).")
        parser.add_argument(
            "--model-mb", type=positive, help="Size of each; default: 2048, or 64 on the CPU."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        from dispatcher_project.celery_transport.pinned import find_device
        from gpu_host.local.check import check
        from gpu_host.local.device import Gauge, NoSuchDevice, machine_gauge
        from gpu_host.local.nvml import NvmlError, VramGauge

        try:
            device, nvml = find_device(options["gpu"])
        except (NvmlError, NoSuchDevice) as error:
            self.stdout.write(f"There is no GPU to check: {error}")
            sys.exit(NOTHING_TO_CHECK)
        gauge: Gauge = machine_gauge()
        if nvml is None:
            self.stdout.write("No GPU is checked: the same code runs on the CPU, its errors are made up.")
        else:
            gauge = VramGauge(nvml, device.uuid)
            self.stdout.write(f"{nvml.name(device.uuid)} {device.uuid}")
            self.stdout.write(json.dumps(asdict(nvml.read(device.uuid))))
            if (
                importlib.util.find_spec("torch") is None
            ):  # looked for, not imported: that is the child's part
                self.stdout.write("torch is not installed here: its models can't be loaded.")
                sys.exit(NOTHING_TO_CHECK)
        all_well = True
        size = options["model_mb"] or (2048 if device.is_gpu else 64)
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            for found in check(device, gauge, Path(folder), model_mb=size, swaps=options["swaps"]):
                mark = {True: "well", False: "NOT WELL", None: "told"}[found.well]
                self.stdout.write(f"{mark:9} {found.what}: {found.said}")
                all_well = all_well and found.well is not False
        sys.exit(0 if all_well else 1)
