"""Puts the parts of production together: the ports (clocks, Redis, broker, database), and what web and worker
processes run on them. The only place that does; each process imports only its own parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.utils.module_loading import import_string

import jobs.ports
from foundation.database.connections import ConnectionPool
from gpus.leasing.clock import SharedClock, time_of
from gpus.leasing.store import RedisFleets
from gpus.protocol import SystemClock
from gpus.registry.layouts import Layouts, read_index_states
from jobs.events.announce import Announcer, SelfNotifications
from jobs.ports import Ports, after_seconds
from jobs.reports.database_clock import database_time, last_database_time
from jobs.wakes import HintPublisher
from workflows.execution.reads import nodes_of
from workflows.execution.retried import retryable
from workflows.schedules.models import reopen

if TYPE_CHECKING:
    from dispatcher_project.celery_transport.pinned_watch import PinnedWatch
    from dispatcher_project.web.asgi_gateway import AsgiGateway
    from gpu_host.local.device import Device
    from gpu_host.local.gpu import LocalGpu
    from gpu_host.local.nvml import Nvml
    from gpus.protocol import Lease, ModelSpec
    from gpus.runners.base import Runner
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.execution.gpu_worker import GpuWorker
    from jobs.execution.presence import Presence
    from jobs.sweeps.runner import Runner as SweepRunner
    from workflows.execution.due_runs import DueRuns

WSGI_THREADS = 16
HEAVY_AT_ONCE = 1
"""More heavy requests compete with each other and with short submits for the interpreter and SQLite's lock:
another tenant's p99 beside batches was 113 ms with one, 179 ms with two."""


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
        leases=RedisFleets(settings.REDIS_URL, layouts.refusal),
        send_wakes=hints.send_wakes,
        wake_callbacks=hints.wake_callbacks,
        wake_followers=hints.wake_followers,
        retryable=retryable,
        reopened=reopen,
        nodes_of=nodes_of,
        announce=Announcer(settings.REDIS_URL),
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
    ports = jobs.ports.production_ports()
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

    return Runner(jobs.ports.production_ports(), Sweeps().entries)


def make_delivery_worker() -> DeliveryWorker:
    """Make the worker that sends this process's callbacks; it is not started."""
    from jobs.callbacks.delivery_worker import DeliveryWorker

    return DeliveryWorker(jobs.ports.production_ports())


def make_due_runs() -> DueRuns:
    """Make what advances the workflow runs that are due in this process."""
    from workflows.execution.advancer import Advancer
    from workflows.execution.due_runs import DueRuns

    return DueRuns(Advancer(jobs.ports.production_ports()))


def make_pinned_watch(
    gpu: LocalGpu, *, server: str, host: str, fleet: str, device: Device, nvml: Nvml | None
) -> PinnedWatch:
    """Make the watch of a pinned worker; it is not started."""
    from dispatcher_project.celery_transport.pinned_watch import PinnedWatch

    return PinnedWatch(
        gpu,
        server=server,
        host=host,
        fleet=fleet,
        device=device,
        nvml=nvml,
        ports=jobs.ports.production_ports(),
    )


def make_gateway() -> AsgiGateway:
    """Make the ASGI application of a web process: event streams and submits on the loop, Django in a few
    threads. One per event loop, because its event hub belongs to the loop."""
    from a2wsgi import WSGIMiddleware

    from artifacts.store.local import LocalStore
    from dispatcher_project.web.artifact_bytes import ArtifactBytes
    from dispatcher_project.web.asgi_gateway import AsgiGateway
    from dispatcher_project.web.cog_uploads import CogUploads
    from dispatcher_project.web.headers import Utf8Handler
    from dispatcher_project.web.request_limits import FairThreads, ResponseDeadline, unless_given_up
    from dispatcher_project.web.submit_batcher import SubmitBatcher, SubmitHandler
    from jobs.events.hub import EventHub
    from jobs.submission.fetched_urls import UrlFetcher
    from workflows.event_stream import follow_run

    def local_store() -> LocalStore | None:
        store = jobs.ports.production_ports().artifact_store
        return store if isinstance(store, LocalStore) else None

    limits = settings.DISPATCHER
    threads = WSGIMiddleware(cast("Any", unless_given_up(Utf8Handler())), workers=WSGI_THREADS)
    behind = FairThreads(
        cast("Any", threads), limits.web_threads_per_tenant, limits.web_heavy_at_once or HEAVY_AT_ONCE
    )
    return AsgiGateway(
        ResponseDeadline(SubmitBatcher(behind, SubmitHandler()), limits.answer_seconds),
        lambda: EventHub(settings.REDIS_URL),
        begin_web_presence,
        streams_per_reader=limits.streams_per_reader,
        body_bytes=limits.web_body_bytes,
        artifact_bytes=ArtifactBytes(local_store),
        cog_uploads=CogUploads(jobs.ports.production_ports),
        url_fetcher=UrlFetcher(),
        sources={"run": follow_run},
    )


def begin_web_presence() -> Callable[[], None]:
    """Write a web process's sign of life every few seconds, and the refusals that it counted; call the
    returned function to end it."""
    from gpus.models import Process
    from jobs.execution.presence import Presence

    ports = jobs.ports.production_ports()
    presence = Presence(ports, Process.Kind.WEB, each_step=ports.request_refusals.write)
    presence.start()

    def end() -> None:
        presence.stop()
        ports.request_refusals.write(now=True)

    return end


def make_presence(queues: Collection[str], sweeps: SweepRunner | None) -> Presence:
    """Make the sign of life of a process that consumes these queues. sweeps: runs its sweeps, if it has
    some."""
    from gpus.models import Process
    from jobs.execution.presence import Presence
    from jobs.sweeps.layout_overlap import LayoutOverlapSweeper

    if sweeps is None:
        return Presence(jobs.ports.production_ports(), Process.Kind.CALLBACKS, queues=lambda: queues)
    sweeper = LayoutOverlapSweeper(sweeps.run_named)
    return Presence(
        jobs.ports.production_ports(),
        Process.Kind.SWEEPS,
        queues=lambda: queues,
        on_layout_overlap=sweeper.step,
    )
