"""A GPU server of the test's own: a node in this process, and what its log proves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node


@dataclass(frozen=True, slots=True)
class GpuServer:
    """name: as it is registered; model: the only one it serves."""

    name: str
    model: str
    slots: int
    node: Node

    @classmethod
    def start(cls, model: str, *, slots: int, mode: str, push: bool) -> GpuServer:
        node = Node(
            NodeConfig(
                handlers={model: "tests.support.system.gates:run"},
                slots=slots,
                mode=mode,
                push=push,
                keep_runs=2000,
                cancel_wait_seconds=4.0,  # less than a dispatcher waits for its answer
            )
        )
        node.start()
        return cls(f"{model}-server", model, slots, node)

    @property
    def endpoint(self) -> str:
        return f"{self.node.url}/{self.model}/generate"

    @property
    def model_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model_type": self.node.config.mode,
            "cancel_endpoint_template": "/cancel/{job_id}",
            "max_run_seconds": 300.0,
        }
        if self.node.config.mode == "async":
            fields |= {"poll_endpoint_template": "/status/{id}", "id_field": "job_id", "poll_interval": 0.2}
        return fields

    def running(self) -> list[str]:
        """The jobs it runs now."""
        return [job["job_id"] for job in self.node.health()["jobs"]]

    def runs_of(self, job_id: str) -> list[dict[str, Any]]:
        return [run for run in self.node.runs() if run["job"] == job_id]

    def ran(self) -> int:
        """Runs that came to their end."""
        return sum(run["outcome"] == "success" for run in self.node.runs())

    def assert_each_ran_once(self, job_ids: Collection[str]) -> None:
        times = Counter(run["job"] for run in self.node.runs())
        wrong = {job_id: times[job_id] for job_id in job_ids if times[job_id] != 1}
        assert not wrong, f"{self.name} did not run each job once: {dict(list(wrong.items())[:10])}"

    def assert_never_full(self) -> None:
        """Nobody was sent to a slot that was not free."""
        health = self.node.health()
        assert health["refused_503"] == 0
        assert health["late_senders"] == 0
        assert health["max_running"] <= self.slots
