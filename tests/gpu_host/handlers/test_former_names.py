"""Code of others that was written for 0.1 finds the contract under its former name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dispatcher_project.worker_bench import ROOT

MODEL = """
import gpus.handlers.errors
from gpus.handlers import BadInput, RunContext

def run(payload, ctx: RunContext):
    raise BadInput("no")
"""
LOOK = """
from gpu_host import handlers
from gpu_host.handlers import errors
from gpu_host.handlers.code import find_models, import_source
model = find_models(["model_of_0_1"])["model_of_0_1"]
import model_of_0_1, gpus.handlers
assert model_of_0_1.BadInput is handlers.BadInput is errors.BadInput is gpus.handlers.errors.BadInput
assert errors.__name__ == errors.__spec__.name == "gpu_host.handlers.errors"
assert import_source("gpus.node.simulator:run") is import_source("gpu_host.node.simulator:run")
"""


def test_a_model_of_0_1_raises_the_contracts_own_errors(tmp_path: Path) -> None:
    (tmp_path / "model_of_0_1.py").write_text(MODEL)
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""}
    subprocess.run([sys.executable, "-c", LOOK], env=environment, check=True)
