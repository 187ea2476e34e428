"""The trial's own GPU servers: nodes in processes of their own, each with a log of its own.

Four servers with two slots each, two pools: ``image`` answers with the result, ``video`` with an id to poll,
and one of its servers also pushes. One server of each pool is behind the proxy, which can cut it off.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.signs import http_says_ok
from verification.proving.children import Child, Children

HANDLER = "verification.proving.handler:run"
_READY_SECONDS = 20.0
_POLLED: Mapping[str, Any] = {
    "model_type": "async",
    "poll_endpoint_template": "/status/{id}",
    "id_field": "job_id",
    "cancel_endpoint_template": "/cancel/{job_id}",
}
RUN_LIMIT_SECONDS = 60.0
MODELS: Mapping[str, Mapping[str, Any]] = {
    "image": {"cancel_endpoint_template": "/cancel/{job_id}"},
    "once": {"at_most_once": True},
    "video": {**_POLLED, "poll_interval": 0.2},
    "speech": {**_POLLED, "poll_interval": 0.5},
}


@dataclass(slots=True)
class Gpu:
    """A GPU server. name, pool, models: as registered. port: its own; entrance: the port that the dispatcher
    uses."""

    name: str
    pool: str
    models: tuple[str, ...]
    slots: int
    mode: str
    push: bool
    port: int
    log: Path
    entrance: int = 0
    child: Child | None = None

    @property
    def slot_names(self) -> list[str]:
        """The names of its slots, such as `flux-1/0`."""
        return [f"{self.name}/{index}" for index in range(self.slots)]

    def command(self) -> list[str]:
        """Return the command line that starts this server as a node."""
        handlers = [part for model in self.models for part in ("--handler", f"{model}={HANDLER}")]
        push = [] if self.push else ["--no-push"]
        return [
            sys.executable, "-m", "gpu_host.node", *handlers, "--mode", self.mode, *push, "--grace", "1",
            "--slots", str(self.slots), "--port", str(self.port), "--log", str(self.log),
        ]  # fmt: skip

    def inject(self, **fault: Any) -> None:
        """Post a fault to the node (gpu_host/node/faults.py)."""
        self._faults("POST", json.dumps(fault).encode())

    def clear_faults(self) -> None:
        """Remove all posted faults."""
        self._faults("DELETE", None)

    def _faults(self, method: str, body: bytes | None) -> None:
        url = f"http://127.0.0.1:{self.port}/faults"
        with urllib.request.urlopen(urllib.request.Request(url, body, method=method), timeout=10):
            pass


@dataclass(slots=True)
class Fleet:
    """All GPU servers of the trial. prefix: of every name, so that trials of one dispatcher don't collide."""

    prefix: str
    children: Children
    gpus: list[Gpu] = field(default_factory=list)

    @classmethod
    def planned(cls, prefix: str, children: Children, folder: Path, ports: Iterator[int]) -> Fleet:
        """Return the fleet, not started."""
        kinds = {"image": (("image", "once"), "sync"), "video": (("video", "speech"), "async")}
        gpus = [
            Gpu(
                name=f"{prefix}-{pool}-{number}",
                pool=f"{prefix}-{pool}",
                models=tuple(f"{prefix}-{model}" for model in models),
                slots=2,
                mode=mode,
                push=number == 1,
                port=next(ports),
                log=folder / f"gpu-{pool}-{number}.jsonl",
            )
            for pool, (models, mode) in kinds.items()
            for number in (1, 2)
        ]
        return cls(prefix, children, gpus)

    @property
    def slots(self) -> list[str]:
        """The slot names of all servers."""
        return [slot for gpu in self.gpus for slot in gpu.slot_names]

    @property
    def behind_proxy(self) -> list[Gpu]:
        """The servers that the dispatcher reaches through a proxy, so that connections can be cut."""
        return [gpu for gpu in self.gpus if gpu.name.endswith("2")]

    def server_of(self, slot: str) -> Gpu:
        """Return the server of a slot."""
        name = slot.rpartition("/")[0]
        return next(gpu for gpu in self.gpus if gpu.name == name)

    def start(self) -> None:
        for gpu in self.gpus:
            self.begin(gpu)
        for gpu in self.gpus:
            self.wait_until_up(gpu)

    def begin(self, gpu: Gpu) -> None:
        """Start the server's process, without waiting for it."""
        gpu.child = self.children.start(gpu.name, *gpu.command())

    def wait_until_up(self, gpu: Gpu) -> None:
        """Wait until the server answers its health check. Raises RuntimeError after the time limit."""
        until = time.monotonic() + _READY_SECONDS
        while not http_says_ok("127.0.0.1", gpu.port, "/health"):
            if time.monotonic() > until:
                raise RuntimeError(f"GPU server {gpu.name} did not start; see its log")
            time.sleep(0.05)

    def registrations(self) -> Iterator[dict[str, Any]]:
        """Yield bodies for `/admin/register`."""
        for gpu in self.gpus:
            for model in gpu.models:
                yield {
                    "model": model,
                    "server": gpu.name,
                    "endpoint": f"http://127.0.0.1:{gpu.entrance or gpu.port}/{model}/run",
                    "slots": gpu.slots,
                    "pool": gpu.pool,
                    "max_run_seconds": RUN_LIMIT_SECONDS,
                    "max_poll_time": RUN_LIMIT_SECONDS,
                    **MODELS[model.removeprefix(f"{self.prefix}-")],
                }
