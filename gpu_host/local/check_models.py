"""Models of `manage.py gpu_check`: random weights of ``GPU_CHECK_MB`` MB each, by torch on a GPU, otherwise
in plain memory."""

from __future__ import annotations

import os
from typing import Any

from gpu_host.handlers import RunContext

MIB = 1024 * 1024
_SIZE_MB = int(os.environ.get("GPU_CHECK_MB", "64"))
_ON_GPU = bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
_SIDE = 512


class Weights:
    """Multiplies a part of its weights by itself: the result changes if they did not survive."""

    vram_mb = _SIZE_MB + 64
    warm_seconds = 3600

    def load(self) -> None:
        if not _ON_GPU:
            self.weights: Any = bytearray(os.urandom(MIB)) * _SIZE_MB
            return
        import torch  # type: ignore[import-not-found,unused-ignore]

        self.weights = torch.randn(_SIZE_MB * MIB // 4, device="cuda")

    def run(self, payload: Any, ctx: RunContext) -> Any:
        if not _ON_GPU:
            return sum(self.weights[:: len(self.weights) // 1000])
        part = self.weights[: _SIDE * _SIDE].reshape(_SIDE, _SIDE)
        return float((part @ part).sum().item())


class A(Weights):
    pass


class B(Weights):
    pass


class C(Weights):
    pass


class Sticky:
    """Breaks the CUDA context of its process."""

    vram_mb = 16

    def run(self, payload: Any, ctx: RunContext) -> Any:
        if not _ON_GPU:
            raise RuntimeError("CUDA error: as if it were one")
        import torch

        index = torch.tensor([1 << 30], device="cuda")
        torch.zeros(1, device="cuda")[index].sum().item()
        raise AssertionError("the GPU accepted an index that is out of range")


MODELS = {"check-a": A, "check-b": B, "check-c": C, "check-sticky": Sticky}
