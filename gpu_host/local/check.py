"""Whether this machine's GPU does what a pinned worker asks of it: `manage.py gpu_check`. Real loads, real
errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_host.local.device import Device, Gauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.loaded_models import GPU_LIBRARY_MB, Knobs
from gpu_host.local.orders import Order
from gpus.errors import GpuError, GpuFault

BACK_MB = 100.0
RECOVERY_SECONDS = 10.0
_MODELS = ("check-a", "check-b", "check-c")
_CONTEXT_MB, _PYTHON_MB = 500, 20
"""What a process holds without any model, about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """well: None for what is only told."""

    what: str
    said: str
    well: bool | None = None


class Residues:
    """MB that unloads left behind, as a `LocalGpu` tells of them. first: of some model's first cycle in its
    process."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.later: list[float] = []

    def __call__(self, event: str, **fields: Any) -> None:
        if event == "unload_measured":
            (self.first if fields["first"] else self.later).append(fields["residue_mb"])

    def findings(self) -> Iterator[Finding]:
        if self.first:
            yield Finding("kept after first unloads", f"{max(self.first):.0f} MB at most, by libraries")
        what = "largest residue after each model's first cycle"
        if self.later:
            yield Finding(what, f"{max(self.later):.0f} MB", max(self.later) <= BACK_MB)
        else:
            yield Finding(what, "not seen: too few swaps")


class NoPatience:
    """Waits for as long as it takes."""

    fired = False

    def set_reader(self, end_read: Callable[[], None] | None) -> None:
        pass


def check(device: Device, gauge: Gauge, output_root: Path, *, model_mb: int, swaps: int) -> Iterator[Finding]:
    """Three models of this size, of which two fit. Leaves nothing behind."""
    before = gauge.read(None)
    residues = Residues()
    gpu = LocalGpu(
        ["gpu_host.local.check_models"],
        gauge=gauge,
        environment={**device.environment(), "GPU_CHECK_MB": str(model_mb)},
        output_root=output_root,
        is_gpu=device.is_gpu,
        knobs=Knobs(
            budget_mb=2.5 * (model_mb + 64) + (_CONTEXT_MB if device.is_gpu else _PYTHON_MB),
            library_mb=GPU_LIBRARY_MB if device.is_gpu else 0.0,
        ),
        happened=residues,
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
    # of the machine's memory everybody else takes and gives too: there it is only told
    yield Finding("memory left behind", f"{left:.0f} MB", left <= BACK_MB if device.is_gpu else None)


def _swap(gpu: LocalGpu, swaps: int) -> Iterator[Finding]:
    began, replaced = time.monotonic(), gpu.spawned
    known: dict[str, object] = {}
    runs = 0
    while gpu.loads < swaps and runs < 3 * swaps:
        model = _MODELS[runs % len(_MODELS)]
        runs += 1
        gpu.run(_order(model), NoPatience())
        known[model] = True
    seconds = time.monotonic() - began
    each = f"{seconds / max(1, runs):.2f} s each"
    said = f"{gpu.loads} loads in {runs} runs over {len(known)} models, {each}, none out of memory"
    yield Finding("swaps", said, gpu.loads >= swaps)
    not_back = gpu.spawned - replaced
    yield Finding(
        "unloads whose memory did not come back", f"{not_back} (the process was replaced)", not not_back
    )


def _recover(gpu: LocalGpu) -> Iterator[Finding]:
    began = time.monotonic()
    try:
        gpu.run(_order("check-sticky"), NoPatience())
        yield Finding("a sticky CUDA error", "could not be provoked", False)
        return
    except GpuFault as error:
        said = error.message
    gpu.run(_order(_MODELS[0]), NoPatience())
    seconds = time.monotonic() - began
    yield Finding(
        "a sticky CUDA error",
        f"“{said[:80]}”: the next run ended {seconds:.1f} s later, in a new process",
        seconds < RECOVERY_SECONDS,
    )


def _order(model: str) -> Order:
    attempt = uuid.uuid4().hex
    return Order(attempt=attempt, job=attempt, model=model, payload=None, limit_seconds=120.0)
