from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand

from dispatcher_project.cli.arguments import HIDDEN_OPTIONS, positive

NOTHING_TO_CHECK = 3


class Command(BaseCommand):
    help = (
        "Check a GPU of this machine the way a pinned worker uses it: readings, loading and unloading real "
        "models, a sticky CUDA error. Exit status: 0 all well, 1 a check failed, 3 no GPU or no torch."
    )
    requires_system_checks = []
    suppressed_base_arguments = HIDDEN_OPTIONS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        parser.add_argument(
            "--gpu", default="0", help="index or UUID; `none` runs the checks on the CPU (default 0)"
        )
        parser.add_argument("--swaps", type=positive, default=500, help="how many model loads (default 500)")
        parser.add_argument(
            "--model-mb", type=positive, help="size of each model (default 2048, on the CPU 64)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        from dispatcher_project.celery_transport.pinned import find_device
        from gpu_host.local.check import check
        from gpu_host.local.device import Gauge, NoSuchDevice, machine_gauge
        from gpu_host.local.nvml import NvmlError, VramGauge

        document: dict[str, Any] = {"gpu": None, "reading": None, "checks": [], "error": ""}
        self.as_json = options["json"]
        try:
            device, nvml = find_device(options["gpu"])
        except (NvmlError, NoSuchDevice) as error:
            self._nothing_to_check(document, f"no GPU to check: {error}")
        gauge: Gauge = machine_gauge()
        if nvml is None:
            self._tell("no GPU is checked: the same code runs on the CPU, with simulated errors")
        else:
            gauge = VramGauge(nvml, device.uuid)
            document["gpu"] = {"name": nvml.name(device.uuid), "uuid": device.uuid}
            document["reading"] = asdict(nvml.read(device.uuid))
            self._tell(f"{document['gpu']['name']} {device.uuid}")
            self._tell(json.dumps(document["reading"]))
            if importlib.util.find_spec("torch") is None:  # only the model process imports it
                text = "torch is not installed here, so no model can be loaded: pip install torch"
                self._nothing_to_check(document, text)
        all_well = True
        size = options["model_mb"] or (2048 if device.is_gpu else 64)
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            for found in check(device, gauge, Path(folder), model_mb=size, swaps=options["swaps"]):
                mark = {True: "ok", False: "FAILED", None: "info"}[found.ok]
                document["checks"].append(asdict(found))
                self._tell(f"{mark:7} {found.check}: {found.result}")
                all_well = all_well and found.ok is not False
        if self.as_json:
            self.stdout.write(json.dumps(document))
        sys.exit(0 if all_well else 1)

    def _tell(self, text: str) -> None:
        if not self.as_json:
            self.stdout.write(text)

    def _nothing_to_check(self, document: dict[str, Any], why: str) -> NoReturn:
        self.stdout.write(json.dumps({**document, "error": why}) if self.as_json else why)
        sys.exit(NOTHING_TO_CHECK)
