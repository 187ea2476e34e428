"""Code and commands for version 0.1 find the GPU host under its former names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT

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
assert handlers.__spec__.name == "gpu_host.handlers"
assert import_source("gpus.node.simulator:run") is import_source("gpu_host.node.simulator:run")
"""


def python(*arguments: str, path: Path = ROOT) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_model_of_0_1_raises_the_contracts_own_errors(tmp_path: Path) -> None:
    (tmp_path / "model_of_0_1.py").write_text(MODEL)
    python("-c", LOOK, path=tmp_path)


def test_an_authors_own_test_imports_the_contract() -> None:
    assert python("-c", "from gpus.handlers import RunContext as R; print(R.__module__)") == (
        "gpu_host.handlers.context\n"
    )


@pytest.mark.parametrize("module", ["gpus.node", "gpus.node.demo"])
def test_a_node_is_started_by_its_former_name(module: str) -> None:
    assert python("-m", module, "--help") == python("-m", module.replace("gpus", "gpu_host"), "--help")
