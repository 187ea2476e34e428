"""The check of a GPU: without one it says so, and on the CPU it goes the same way."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from gpus.local.nvml import Nvml, NvmlError


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
    assert said.startswith("There is no GPU to check: no NVIDIA driver")


def test_on_the_cpu_it_swaps_three_models_and_survives_an_error(capsys):
    status, said = checked(capsys, gpu="none", swaps=6)
    assert status == 0, said
    assert "well      swaps: 6 loads in" in said
    assert "in a new process" in said
    assert "unloads whose memory did not come back: 0" in said
