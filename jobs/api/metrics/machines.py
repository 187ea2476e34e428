"""What workers measure on their own machines: GPUs, memory, warm models, how long ago they were heard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from gpus.health.pinned_servers import beats_of, recent_telemetry
from gpus.models import Server
from jobs.ports import Ports

_OF_GPU = {
    "utilisation": ("dispatcher_gpu_utilisation_percent", "How busy the GPU is."),
    "used_mb": ("dispatcher_gpu_memory_used_mb", "GPU memory in use, by whomever."),
    "total_mb": ("dispatcher_gpu_memory_total_mb", "The GPU's memory."),
    "temperature": ("dispatcher_gpu_temperature_celsius", "The GPU's temperature."),
    "power": ("dispatcher_gpu_power_watts", "What the GPU draws."),
    "ecc_errors": ("dispatcher_gpu_ecc_errors", "Uncorrected ones since the GPU's driver was loaded."),
}
_OF_MACHINE = {
    "cpu_percent": ("dispatcher_machine_cpu_percent", "How busy the machine's CPUs are."),
    "ram_used_mb": ("dispatcher_machine_memory_used_mb", "Main memory in use on the machine."),
    "models_ram_mb": ("dispatcher_models_memory_mb", "Main memory of the process that holds the models."),
}


def pinned() -> list[Server]:
    """Raises DatabaseError."""
    return list(Server.objects.filter(host__isnull=False).select_related("pool").order_by("name"))


def collect(servers: Sequence[Server], ports: Ports) -> list[Metric]:
    """Servers whose Redis is away are missing."""
    age = GaugeMetricFamily(
        "dispatcher_worker_heartbeat_age_seconds",
        "Since the worker of a pinned server was last heard.",
        labels=["server"],
    )
    warm = GaugeMetricFamily("dispatcher_warm_models", "1: the model is loaded.", labels=["server", "model"])
    processes = GaugeMetricFamily(
        "dispatcher_gpu_processes", "How many hold the GPU's memory.", labels=["server"]
    )
    xids = GaugeMetricFamily(
        "dispatcher_gpu_xids", "Errors that the driver told since the worker began.", labels=["server", "xid"]
    )
    gauges = {
        name: GaugeMetricFamily(name, text, labels=["server"])
        for name, text in (*_OF_GPU.values(), *_OF_MACHINE.values())
    }
    beats, _ = beats_of(servers, ports.leases)
    for server, beat in sorted(beats.items()):
        age.add_metric([server], beat.age_seconds)
        found = recent_telemetry(beat)
        if found is None:
            continue
        for model in found.get("warm", ()):
            warm.add_metric([server, model], 1)
        _add(gauges, _OF_MACHINE, server, found)
        gpu = found.get("gpu") or {}
        _add(gauges, _OF_GPU, server, gpu)
        if gpu:
            processes.add_metric([server], len(gpu.get("processes", ())))
        for xid, times in gpu.get("xids", {}).items():
            xids.add_metric([server, xid], times)
    return [age, warm, processes, xids, *gauges.values()]


def _add(
    gauges: Mapping[str, GaugeMetricFamily],
    names: Mapping[str, tuple[str, str]],
    server: str,
    found: Mapping[str, Any],
) -> None:
    for field, (name, _) in names.items():
        if found.get(field) is not None:
            gauges[name].add_metric([server], found[field])
