"""The worker's side of a hostile model, in a process of its own of any user: standard library only.

Reads one JSON object a line, a payload for the model or ``{"end": true}``; answers each with a line."""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from gpu_host.local.confinement import Confinement, find_user
from gpu_host.local.device import RamGauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.limits import hide_process
from gpu_host.local.loaded_models import LocalGpuOptions
from gpu_host.local.orders import Order
from gpu_host.local.output import folder_for_runs, make_own_folder
from gpus.errors import GpuError


class AbortSignal:
    fired = False

    def set_reader(self, end_read: Any) -> None:
        pass


def main(folder: str, user: str, limits: str) -> None:
    hide_process()
    confinement = Confinement(user=find_user(user) if user else None, **json.loads(limits))
    own = make_own_folder("runs", Path(folder))
    lines: list[str] = []
    heard: list[Any] = []
    gpu = LocalGpu(
        ["tests.gpu_host.local.hostile"],
        gauge=RamGauge(),
        environment={"CUDA_VISIBLE_DEVICES": "", "TEST_FOLDER": folder},
        output_root=folder_for_runs(own, confinement),
        confinement=confinement,
        options=LocalGpuOptions(cancel_seconds=0.5),
        on_event=lambda order, kind, value: heard.append([order.attempt, kind, value]),
        output=lines.append,
    )
    for line in sys.stdin:
        payload = json.loads(line)
        if payload.get("end"):
            break
        lines.clear()
        heard.clear()
        said = run(gpu, payload)
        until = time.monotonic() + 30
        while payload.get("prints") and not (lines or heard) and time.monotonic() < until:
            time.sleep(0.01)  # they arrive by another channel than the run's end
        said |= {"lines": list(lines), "heard": list(heard), "spawned": gpu.spawned, "peak": peak_kb()}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    gpu.stop()


def run(gpu: LocalGpu, payload: Any) -> dict[str, Any]:
    attempt = payload.get("attempt") or uuid.uuid4().hex
    order = Order(
        attempt, f"job-{attempt}", "hostile", payload, payload.get("limit", 20.0), max_result_bytes=1 << 20
    )
    beside: list[dict[str, Any]] = []
    other = payload.get("beside")
    thread = threading.Thread(target=lambda: beside.append(run(gpu, other)), daemon=True) if other else None
    if thread is not None:
        thread.start()
    try:
        said: dict[str, Any] = {"result": gpu.run(order, AbortSignal()), "error": None}
    except GpuError as error:
        said = {"result": None, "error": error.code, "message": error.message}
    if thread is not None:
        thread.join(30)
        said["beside"] = beside
    return said


def peak_kb() -> int:
    """Peak memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
