"""The pinned GPU worker, which runs models itself: `manage.py gpu_worker --gpu 0 --models myapp.models`.

It registers as a server that only this process drives. A child process loads the models. `pinned_watch` sends
heartbeats, follows the server's desired state, and monitors the GPU.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings

from foundation.log_lines import LogLine, RateLimit
from foundation.names import NAME_PATTERN
from gpu_host.handlers.code import Declared
from gpu_host.handlers.errors import ContractError
from gpu_host.llm_servers import declared as llm_servers
from gpu_host.llm_servers.server import UnitProcesses
from gpu_host.local.confinement import DEFAULT_CONFINEMENT, Confinement, NoSuchUser, find_user
from gpu_host.local.device import Device, Gauge, NoSuchDevice, choose_device, is_uuid, machine_gauge
from gpu_host.local.gpu import LocalGpu, LocalRunner
from gpu_host.local.limits import hide_process
from gpu_host.local.loaded_models import GPU_LIBRARY_MB, LocalGpuOptions
from gpu_host.local.nvml import Nvml, NvmlError, VramGauge
from gpu_host.local.orders import Order
from gpu_host.local.output import folder_for_runs, make_own_folder
from gpus.errors import GpuError
from gpus.health.pinned_servers import register_pinned, sign_off
from gpus.models import Pool
from gpus.registry.model_fields import RegistryRefused
from jobs.ports import Ports

log = structlog.get_logger(__name__)

COULD_NOT_START = 2
LINES_PER_SECOND, LINES_AT_ONCE = 50, 500
"""Lines of all runs in this worker's log; the jobs' own logs have further ones."""


@dataclass(frozen=True, slots=True)
class PinnedOptions:
    """Options of a pinned worker.

    gpu: index, UUID or ``none``. models: see `gpu_host.handlers.code.find_models`. name: the server's; empty:
    made from the names of machine and GPU. pool: for models that have none yet. slots: None for as many as
    the models run at once. budget_mb: memory for models. servers: file of LLM servers that may run here, see
    `gpu_host.llm_servers.declared`. machine: group of servers that are switched together; empty: the host
    name. model_user: the user that models run as; empty: the setting's.
    """

    gpu: str
    models: Sequence[str]
    name: str = ""
    pool: str = ""
    fleet: str | None = None
    slots: int | None = None
    budget_mb: float | None = None
    ready_file: Path | None = None
    health_port: str = ""
    servers: Path | None = None
    machine: str = ""
    model_user: str = ""


def run_pinned_worker(options: PinnedOptions) -> int:
    """Run a pinned worker until it is stopped; return its exit status."""
    from dispatcher_project import wiring
    from dispatcher_project.celery_transport.run import run_gpu_worker
    from jobs.ports import production_ports

    ports = production_ports()
    output_root: Path | None = None
    gpu: LocalGpu | None = None
    server = host = ""
    hide_process()
    try:
        confinement = confinement_of(options)
        device, nvml = find_device(options.gpu)
        server = options.name or f"{_plain(socket.gethostname())}-{device.label}"
        output_root = make_own_folder(f"dispatcher-runs-{server}")
        gpu = make_gpu(device, nvml, options, folder_for_runs(output_root, confinement), confinement)
        models = gpu.start()
        host = process_host(server)
        slots = options.slots or max(model.at_once for model in models.values())
        home = _register(options, server=server, host=host, slots=slots, models=models, ports=ports)
        watch = wiring.make_pinned_watch(
            gpu, server=server, host=host, fleet=home.fleet, device=device, nvml=nvml
        )
        watch.start()
        try:
            return run_gpu_worker(
                pools=[home.name],
                host=host,
                concurrency=slots,
                name=server,
                ready_file=options.ready_file,
                runners=lambda spec: LocalRunner(
                    gpu, input_cache_bytes=settings.DISPATCHER.input_cache_bytes
                ),
                warm=gpu.ready,
                hand_over=False,
                health_port=options.health_port,
            )
        finally:
            watch.stop()
    except (NoSuchUser, NoSuchDevice, NvmlError, RegistryRefused, GpuError, ContractError) as error:
        sys.stderr.write(f"gpu_worker: {error}\n")
        return COULD_NOT_START
    finally:
        if gpu is not None:
            gpu.stop()
        if host:
            _sign_off(server, host, ports)
        if output_root is not None:
            shutil.rmtree(output_root, ignore_errors=True)


def process_host(server: str) -> str:
    """Return a new identity for this worker process. `celery_transport.broker` recognises its queue by this
    form."""
    return f"{server}.{uuid.uuid4().hex[:8]}"


def find_device(name: str) -> tuple[Device, Nvml | None]:
    """Return the device and its driver, None for the CPU. name: index, UUID or ``none``.

    Raises NoSuchDevice, NvmlError.
    """
    if name == "none":
        return choose_device(name, []), None
    nvml = Nvml()
    if is_uuid(name) and nvml.has_device(name):  # the other cards need not be readable
        return choose_device(name, [name]), nvml
    return choose_device(name, nvml.uuids()), nvml


def confinement_of(options: PinnedOptions) -> Confinement:
    """Return the user and the limits of model processes, from options and settings. Raises NoSuchUser."""
    limits, name = settings.DISPATCHER, options.model_user or settings.DISPATCHER.model_user
    user = find_user(name) if name else None
    if user is None and os.geteuid() == 0:
        log.warning("models_run_as_root", instead="--model-user, or DISPATCHER_MODEL_USER")
    return Confinement(
        user=user,
        open_files=limits.model_open_files,
        processes=limits.model_processes,
        file_bytes=limits.model_file_bytes,
        memory_mb=limits.model_memory_mb,
        environment=limits.model_environment,
    )


def make_gpu(
    device: Device,
    nvml: Nvml | None,
    options: PinnedOptions,
    output_root: Path,
    confinement: Confinement = DEFAULT_CONFINEMENT,
) -> LocalGpu:
    """Assemble the `LocalGpu` of a worker: models, memory gauge, environment and confinement."""
    paths, environment, units = list(options.models), device.environment(), list[str]()
    if options.servers is not None:
        units = [one.unit for one in llm_servers.read_file(options.servers) if one.unit]
        paths.append(llm_servers.MODULE)
        environment = {**environment, llm_servers.FILE_VARIABLE: str(options.servers.resolve())}
    ours = UnitProcesses(units)
    gauge: Gauge = machine_gauge(ours) if nvml is None else VramGauge(nvml, device.uuid, ours)
    return LocalGpu(
        paths,
        gauge=gauge,
        environment=environment,
        is_gpu=device.is_gpu,
        output_root=output_root,
        confinement=confinement,
        options=LocalGpuOptions(
            budget_mb=options.budget_mb,
            library_mb=GPU_LIBRARY_MB if device.is_gpu else 0.0,
            input_cache_seconds=settings.DISPATCHER.input_cache_hours * 3600.0,
        ),
        on_event=RunEvents(),
        output=lambda line: log.info("model_output", line=line),
        log_event=log.info,
    )


def _register(
    options: PinnedOptions,
    *,
    server: str,
    host: str,
    slots: int,
    models: Mapping[str, Declared],
    ports: Ports,
) -> Pool:
    found = register_pinned(
        server=server,
        host=host,
        slots=slots,
        models={name: _fields(model) for name, model in models.items()},
        pool=options.pool or _pool_for(models, options),
        fleet=options.fleet,
        machine=options.machine or _plain(socket.gethostname(), 64),
        by=f"worker:{server}",
        leases=ports.leases,
        at=ports.clock.now(),
    )
    ports.send_wakes(found.wakes)
    log.info(
        "pinned_server_registered", server=server, host=host, pool=found.server.pool_id, models=list(models)
    )
    return found.server.pool


def _fields(model: Declared) -> dict[str, Any]:
    return {} if model.max_run_seconds is None else {"max_run_seconds": model.max_run_seconds}


def _pool_for(models: Mapping[str, Declared], options: PinnedOptions) -> str:
    """The default pool: a single model's own name; for several models the name of their module or file of
    servers, which is the same on every machine."""
    if len(models) == 1:
        return next(iter(models))
    if not options.models:
        assert options.servers is not None
        return _plain(options.servers.stem)
    module = options.models[0].rpartition("=")[2].partition(":")[0]
    return _plain(module)


def _plain(name: str, longest: int = 40) -> str:
    """Replace characters that names may not have, and shorten."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:longest] or "machine"
    assert re.fullmatch(NAME_PATTERN, plain)
    return plain


class RunEvents:
    """Passes on what the runs report, and writes their log lines to this worker's log as well."""

    def __init__(self) -> None:
        self._rate = RateLimit(LINES_PER_SECOND, LINES_AT_ONCE)

    def __call__(self, order: Order, kind: str, value: Any) -> None:
        order.on_output(kind, value)
        if kind == "log":
            self._write(order, value.lines)

    def _write(self, order: Order, lines: Sequence[LogLine]) -> None:
        for number, line in enumerate(lines):
            if not self._rate.take(1, time.monotonic()):
                left = len(lines) - number
                log.debug("model_lines_left_out", job_id=order.job, attempt=order.attempt, lines=left)
                return
            level = {"level_of_model": line.level} if line.level else {}
            log.info(
                "model_log",
                job_id=order.job,
                attempt=order.attempt,
                model=order.model,
                stream=line.stream,
                text=line.text,
                **level,
            )


def _sign_off(server: str, host: str, ports: Ports) -> None:
    try:
        sign_off(server, host, leases=ports.leases)
    except Exception as error:  # without a database the sweep notices the missing heartbeats
        log.warning("worker_deregistration_failed", server=server, error=str(error).strip(), pid=os.getpid())
