"""Sends a pinned worker's heartbeats, follows its server's desired state, and monitors the GPU."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.db import connection

from gpu_host.local.device import Device
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.nvml import GpuReading, Nvml, ram_of
from gpu_host.local.telemetry import MachineMeter, ProcessMeter, Reading, measure
from gpu_host.local.watchdog import Watchdog
from gpus.health.pinned_servers import BEAT_SECONDS, GONE_SECONDS, heartbeat_report
from gpus.models import Server
from gpus.protocol import DesiredState
from jobs.ports import Ports

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0


class PinnedWatch:
    """Four threads of a pinned worker: heartbeat, telemetry, the server's switch, and the GPU's health.
    The heartbeat sends the last known health, so that a hanging driver never makes the worker seem dead."""

    def __init__(
        self,
        gpu: LocalGpu,
        *,
        server: str,
        host: str,
        fleet: str,
        device: Device,
        nvml: Nvml | None,
        ports: Ports,
    ) -> None:
        self._gpu, self._server, self._host, self._fleet, self._ports = gpu, server, host, fleet, ports
        self._stopped = threading.Event()
        self._machine = MachineMeter()
        self._read = reader_of(device, nvml)
        self._telemetry: Reading | None = None
        self._measured_at = self._sent_at = -1e9
        cpu = ProcessMeter(lambda: gpu.session)
        self._watchdog = Watchdog(gpu, self._read, cpu=cpu.read, log_event=log.warning)
        self._threads = [
            threading.Thread(target=self._keep, args=(step, seconds, name), name=name, daemon=True)
            for step, seconds, name in (
                (self.measure, BEAT_SECONDS, "measures"),
                (self.beat, BEAT_SECONDS, "beats"),
                (self.look, LOOK_SECONDS, "pinned-watch"),
                (self._watchdog.step, 1.0, "gpu-doctor"),
            )
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(2.0)

    def beat(self) -> None:
        """Send one heartbeat. It needs no database, so that a worker without one still counts as alive."""
        jobs = [(order.job, order.attempt) for order in self._gpu.running()]
        telemetry = self._telemetry if time.monotonic() - self._measured_at <= GONE_SECONDS else None
        why = self._gpu.sick or _unread(telemetry)
        heartbeat = heartbeat_report(self._host, jobs, why=why, telemetry=telemetry)
        history = None if self._measured_at == self._sent_at else telemetry
        self._ports.leases(self._fleet).record_heartbeat(self._server, heartbeat, history)
        self._sent_at = self._measured_at

    def measure(self) -> None:
        """Measure machine and GPU once. It may block for the time-out of a driver that does not answer."""
        self._telemetry = measure(
            self._machine, self._read, warm=self._gpu.warm(), ram_mb=ram_of(self._gpu.session)
        )
        self._measured_at = time.monotonic()

    def look(self) -> None:
        """Follow the server's row: stop if another host drives it, release memory unless it is on."""
        row = Server.objects.filter(name=self._server).values("host", "desired").first()
        if row is None or row["host"] != self._host:
            log.error("server_taken_over", server=self._server, by=row["host"] if row else None)
            self._stopped.set()
            os.kill(os.getpid(), signal.SIGTERM)  # a normal stop: current runs may finish
        elif row["desired"] != DesiredState.ON:
            self._gpu.release_memory()
        else:
            self._gpu.tick()

    def _keep(self, step: Callable[[], Any], seconds: float, name: str) -> None:
        while True:
            began = time.monotonic()
            try:
                step()
            except Exception as error:  # database or Redis unreachable: the next step retries
                log.warning(
                    "pinned_step_failed", step=name, error=str(error).strip(), kind=type(error).__name__
                )
                connection.close()
            if self._stopped.wait(max(0.05, seconds - (time.monotonic() - began))):
                connection.close()
                return


def _unread(telemetry: Reading | None) -> str:
    """The error of the last measurement of the GPU, or ""; the watchdog may not have reported it yet."""
    found = (telemetry or {}).get("gpu_error")
    return f"the GPU can't be read: {found}" if found else ""


def reader_of(device: Device, nvml: Nvml | None) -> Callable[[], GpuReading] | None:
    """Return the function that reads the device; None without a GPU."""
    if nvml is None:
        return None
    driver = nvml
    return lambda: driver.read(device.uuid)
