"""Puts the parts of production together: the ports (clocks, Redis, broker, database), and what the worker
processes run on them. The only place that does; each process imports only its own parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils.module_loading import import_string

from foundation.database.connections import ConnectionPool
from gpus.leasing.clock import SharedClock, time_of
from gpus.leasing.store import RedisFleets
from gpus.protocol import SystemClock
from gpus.registry.processes import Layouts, read_index_states
from jobs.events.announce import Announcer, SelfNotifications
from jobs.ports import Ports, after_seconds, production_ports
from jobs.reports.database_clock import database_time, last_database_time
from jobs.wakes import HintPublisher
from workflows.execution.reads import nodes_of
from workflows.execution.retried import retryable
from workflows.schedules.models import reopen

if TYPE_CHECKING:
    from gpus.protocol import Lease, ModelSpec
    from gpus.runners.base import Runner
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.execution.gpu_worker import GpuWorker
    from jobs.execution.presence import Presence
    from jobs.sweeps.runner import Runner as SweepRunner
    from workflows.execution.due_runs import DueRuns


def make_production_ports() -> Ports:
    """Make new ports. A process uses `jobs.ports.production_ports`, which calls this once."""
    clock = SharedClock(
        SystemClock(),
        time_of(settings.REDIS_URL),
        database_time,
        last_database_time,
        tolerance_seconds=settings.DISPATCHER.clock_tolerance_seconds,
    )
    clock.keep_comparing(after_seconds)
    layouts = Layouts(read_index_states)
    hints = HintPublisher(lambda: import_string(settings.CELERY_APP))
    return Ports(
        clock=clock,
        clock_watch=clock,
        leases=RedisFleets(lambda: str(settings.REDIS_URL), layouts.refusal),
        send_wakes=hints.send_wakes,
        wake_callbacks=hints.wake_callbacks,
        wake_followers=hints.wake_followers,
        retryable=retryable,
        reopened=reopen,
        nodes_of=nodes_of,
        announce=Announcer(lambda: str(settings.REDIS_URL)),
        database=ConnectionPool().connection,
        layouts=layouts,
    )


def make_gpu_worker(
    *,
    threads: int,
    queues: Callable[[], Collection[str]],
    on_registry: Callable[[], None],
    show_run: Callable[[Lease], None],
    runners: Callable[[ModelSpec], Runner] | None = None,
    warm: Callable[[], Sequence[str] | None] | None = None,
) -> GpuWorker:
    """Make the worker of a process, connected to Redis and the database.

    threads, on_registry: as for `GpuWorker`. runners, warm, show_run: as for `WorkerProcess`.
    queues: returns the queues that the process consumes; shown to operators.
    """
    from gpus.models import Process
    from jobs.execution.gpu_worker import GpuWorker
    from jobs.execution.presence import Presence
    from jobs.execution.worker_state import WorkerProcess

    ours = SelfNotifications()
    ports = production_ports()
    ports = replace(ports, announce=ours.tracking(ports.announce))

    def presence(worker: GpuWorker) -> Presence:
        ready = worker.switch_readiness.ready_switches
        return Presence(ports, Process.Kind.GPU, name=worker.name, queues=queues, ready=ready)

    return GpuWorker(
        ports,
        WorkerProcess(ports.transport, runners=runners, warm=warm, show_run=show_run),
        threads=threads,
        self_notifications=ours,
        listen_url=settings.REDIS_URL,
        make_presence=presence,
        on_registry=on_registry,
    )


def make_sweep_runner() -> SweepRunner:
    """Make the runner of this process's sweeps."""
    from jobs.sweeps.registry import Sweeps
    from jobs.sweeps.runner import Runner

    return Runner(production_ports(), Sweeps().entries)


def make_delivery_worker() -> DeliveryWorker:
    """Make the worker that sends this process's callbacks; it is not started."""
    from jobs.callbacks.delivery_worker import DeliveryWorker

    return DeliveryWorker(production_ports())


def make_due_runs() -> DueRuns:
    """Make what advances the workflow runs that are due in this process."""
    from workflows.execution.advancer import Advancer
    from workflows.execution.due_runs import DueRuns

    return DueRuns(Advancer(production_ports()))


def make_web_presence(ports: Ports) -> Presence:
    """Make the sign of life of a web process, which also writes the refusals that it counted."""
    from gpus.models import Process
    from jobs.execution.presence import Presence

    return Presence(ports, Process.Kind.WEB, each_step=ports.request_refusals.write)


def make_presence(queues: Collection[str], sweeps: SweepRunner | None) -> Presence:
    """Make the sign of life of a process that consumes these queues. sweeps: runs its sweeps, if it has
    some."""
    from gpus.models import Process
    from jobs.execution.presence import Presence
    from jobs.sweeps.layout_overlap import LayoutOverlapSweeper

    if sweeps is None:
        return Presence(production_ports(), Process.Kind.CALLBACKS, queues=lambda: queues)
    sweeper = LayoutOverlapSweeper(sweeps.run_named)
    return Presence(
        production_ports(), Process.Kind.SWEEPS, queues=lambda: queues, on_layout_overlap=sweeper.step
    )
