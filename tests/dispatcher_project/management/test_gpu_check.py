"""The check of a GPU: without one it reports that, and on the CPU it runs the same steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command

from gpu_host.local.check import Residues
from gpu_host.local.nvml import Nvml, NvmlError

ROOT = Path(__file__).parents[3]


def checked(capsys: pytest.CaptureFixture[str], **options) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        call_command("gpu_check", **options)
    return int(ended.value.code or 0), capsys.readouterr().out


def test_without_a_gpu_it_says_so_plainly(capsys, monkeypatch: pytest.MonkeyPatch):
    def none(self, library=None):
        raise NvmlError("no NVIDIA driver: Driver Not Loaded")

    monkeypatch.setattr(Nvml, "__init__", none)
    status, said = checked(capsys)
    assert status == 3
    assert said.startswith("no GPU to check: no NVIDIA driver")


def test_on_the_cpu_it_swaps_three_models_and_survives_an_error(capsys):
    status, said = checked(capsys, gpu="none", swaps=6)
    assert status == 0, said
    assert "ok      swaps: 6 loads in" in said
    assert "in a new process" in said
    assert "unloads whose memory did not come back: 0" in said
    assert "ok      largest residue after each model's first cycle: " in said


def test_its_json_is_one_document(capsys, monkeypatch: pytest.MonkeyPatch):
    status, said = checked(capsys, gpu="none", swaps=6, json=True)
    document = json.loads(said)
    assert status == 0, said
    assert (document["gpu"], document["error"]) == (None, "")
    assert {"swaps"} <= {one["check"] for one in document["checks"] if one["ok"]}

    def none(self, library=None):
        raise NvmlError("no NVIDIA driver")

    monkeypatch.setattr(Nvml, "__init__", none)
    status, said = checked(capsys, json=True)
    assert (status, json.loads(said)["error"]) == (3, "no GPU to check: no NVIDIA driver")


def test_it_needs_no_secret_and_no_setting():
    """As on a fresh clone: whatever GPUs there are, the last of ten thousand is not."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPYCACHEPREFIX") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "manage.py", "gpu_check", "--gpu", "9999"],
        cwd=ROOT,
        env={**kept, "DISPATCHER_NO_BOOTSTRAP": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.startswith("no GPU to check: ")


def test_a_residue_is_well_up_to_100_mb_once_each_model_was_loaded_and_unloaded():
    residues = Residues()
    residues("unload_measured", models=["a"], residue_mb=640, first=True)
    residues("model_unloaded", model="a")
    assert [found.ok for found in residues.findings()] == [None, None]
    residues("unload_measured", models=["a"], residue_mb=100, first=False)
    residues("unload_measured", models=["a"], residue_mb=-3, first=False)
    kept, later = residues.findings()
    assert (kept.result, kept.ok) == ("640 MB at most, by libraries", None)
    assert (later.result, later.ok) == ("100 MB", True)
    residues("unload_measured", models=["a"], residue_mb=101, first=False)
    assert [found.ok for found in residues.findings()] == [None, False]
