"""The checks of `manage.py gpu_check`: real loads and real errors on this machine's GPU."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_host.local.device import Device, Gauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.loaded_models import GPU_LIBRARY_MB, LocalGpuOptions
from gpu_host.local.orders import Order
from gpus.errors import GpuError, GpuFault

FREED_TOLERANCE_MB = 100.0
RECOVERY_SECONDS = 10.0
_MODELS = ("check-a", "check-b", "check-c")
_CONTEXT_MB, _PYTHON_MB = 500, 20
"""MB that a process uses without a model, about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ok: None for a figure without a verdict."""

    check: str
    result: str
    ok: bool | None = None


class Residues:
    """Collects the MB that unloads left behind, as log events of a `LocalGpu`.

    first: of unloads that were the first of some model in its process; later: of all others."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.later: list[float] = []

    def __call__(self, event: str, **fields: Any) -> None:
        if event == "unload_measured":
            (self.first if fields["first"] else self.later).append(fields["residue_mb"])

    def findings(self) -> Iterator[Finding]:
        """Yield the largest residues; those of later unloads must be small."""
        if self.first:
            yield Finding("kept after first unloads", f"{max(self.first):.0f} MB at most, by libraries")
        check = "largest residue after each model's first cycle"
        if self.later:
            yield Finding(check, f"{max(self.later):.0f} MB", max(self.later) <= FREED_TOLERANCE_MB)
        else:
            yield Finding(check, "not measured: too few swaps")


class NeverAbort:
    """An `AbortSignal` that never fires."""

    fired = False

    def set_reader(self, end_read: Callable[[], None] | None) -> None:
        pass


def check(device: Device, gauge: Gauge, output_root: Path, *, model_mb: int, swaps: int) -> Iterator[Finding]:
    """Yield the findings of loads, unloads and an error, with three models of which two fit; leave no memory
    behind.

    model_mb: size of each model. swaps: number of loads."""
    before = gauge.read(None)
    residues = Residues()
    gpu = LocalGpu(
        ["gpu_host.local.check_models"],
        gauge=gauge,
        environment={**device.environment(), "GPU_CHECK_MB": str(model_mb)},
        output_root=output_root,
        is_gpu=device.is_gpu,
        options=LocalGpuOptions(
            budget_mb=2.5 * (model_mb + 64) + (_CONTEXT_MB if device.is_gpu else _PYTHON_MB),
            library_mb=GPU_LIBRARY_MB if device.is_gpu else 0.0,
        ),
        log_event=residues,
    )
    try:
        gpu.start()
        if device.is_gpu:
            why = gpu.probe()
            yield Finding("a small kernel", why or "runs", why == "")
        yield from _swap(gpu, swaps)
        yield from residues.findings()
        yield from _recover(gpu)
    except GpuError as error:
        detail = error.detail.strip().splitlines()
        yield Finding(
            "it ended early", f"{error.code}: {error.message} {detail[-1] if detail else ''}", False
        )
    finally:
        gpu.stop()
    after = gauge.read(None)
    left = (after.others + after.own) - (before.others + before.own)
    # other programs change the machine's memory meanwhile: there it is no verdict
    yield Finding(
        "memory left behind", f"{left:.0f} MB", left <= FREED_TOLERANCE_MB if device.is_gpu else None
    )


def _swap(gpu: LocalGpu, swaps: int) -> Iterator[Finding]:
    began, replaced = time.monotonic(), gpu.spawned
    used: set[str] = set()
    runs = 0
    while gpu.loads < swaps and runs < 3 * swaps:
        model = _MODELS[runs % len(_MODELS)]
        runs += 1
        gpu.run(_order(model), NeverAbort())
        used.add(model)
    seconds = time.monotonic() - began
    each = f"{seconds / max(1, runs):.2f} s each"
    result = f"{gpu.loads} loads in {runs} runs over {len(used)} models, {each}, none out of memory"
    yield Finding("swaps", result, gpu.loads >= swaps)
    not_freed = gpu.spawned - replaced
    yield Finding(
        "unloads whose memory did not come back", f"{not_freed} (the process was replaced)", not not_freed
    )


def _recover(gpu: LocalGpu) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        gpu.run(_order("check-sticky"), NeverAbort())
        yield Finding("a sticky CUDA error", "could not be provoked", False)
        return
    except GpuFault as error:
        message = error.message
    gpu.run(_order(_MODELS[0]), NeverAbort())
    seconds = time.monotonic() - began
    yield Finding(
        "a sticky CUDA error",
        f"“{message[:80]}”: the next run ended {seconds:.1f} s later, in a new process",
        seconds < RECOVERY_SECONDS,
    )


def _order(model: str) -> Order:
    attempt = uuid.uuid4().hex
    return Order(attempt=attempt, job=attempt, model=model, payload=None, limit_seconds=120.0)
