"""Runs a Celery worker inside this process, for `manage.py gpu_worker` and `manage.py queue_worker`."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from celery import platforms, signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from django.conf import settings
from django.db import close_old_connections

from dispatcher_project import wiring
from dispatcher_project.celery import app
from dispatcher_project.celery_transport import ordered_stop
from dispatcher_project.celery_transport.broker import PromptConnection
from dispatcher_project.celery_transport.events import HEARTBEAT_SECONDS, ShownRuns
from dispatcher_project.celery_transport.gc_tuning import keep_what_is_loaded
from dispatcher_project.celery_transport.health import Fleets, Health, HealthPort, Loop, Question, TicksOfLoop
from dispatcher_project.celery_transport.ordered_stop import OrderedStop, Predecessor, can_have_successor
from dispatcher_project.celery_transport.pool_queues import PoolQueues, PoolWatch
from gpus.protocol import ModelSpec
from gpus.runners.base import Runner
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE, WORKFLOWS_QUEUE

if TYPE_CHECKING:
    from jobs.callbacks.delivery_worker import DeliveryWorker
    from jobs.sweeps.runner import Runner as SweepRunner

log = structlog.get_logger(__name__)

QUEUE_WORKER_GRACE_SECONDS = 20.0
SWITCH_SECONDS = 0.0005


class Drained(Protocol):
    """A part of a process that ends its work in order. drain: take no more. busy: how much is under way."""

    def drain(self) -> None: ...

    def busy(self) -> int: ...


def run_gpu_worker(
    *,
    pools: Collection[str] | None = None,
    host: str | None = None,
    concurrency: int | None = None,
    name: str = "",
    ready_file: Path | None = None,
    runners: Callable[[ModelSpec], Runner] | None = None,
    warm: Callable[[], Sequence[str] | None] | None = None,
    hand_over: bool = True,
    health_port: str = "",
) -> int:
    """Run a GPU worker until it is stopped; return its exit status.

    pools: names, or None for all, also those registered later. host: process of a pinned worker, whose queues
    are consumed. runners: returns the runner of a model; None: over the network. warm: see `WorkerProcess`.
    hand_over: SIGHUP starts the next process beside this one; False if both would need the same GPU's memory.
    """
    from jobs.ports import production_ports
    from jobs.tasks import work

    # dozens of threads wait for the network beside one busy writer: with Python's 5 ms each of their short
    # steps would wait a whole time slice for the interpreter
    sys.setswitchinterval(SWITCH_SECONDS)
    watch = PoolWatch(pools, host=host)
    fleets = Fleets(lambda fleet: production_ports().leases(fleet))
    threads = concurrency or settings.DISPATCHER.worker_threads
    shown = ShownRuns()
    worker = wiring.make_gpu_worker(
        queues=lambda: watch.queues,
        on_registry=watch.nudge,
        runners=runners,
        threads=threads,
        warm=warm,
        show_run=shown.show,
    )
    stop = OrderedStop(
        grace_seconds=settings.DISPATCHER.deploy_grace_seconds,
        drain=worker.drain,
        busy=worker.busy,
        interrupt=worker.interrupt,
    )
    work.hand(worker)
    app.steps["consumer"].update({PoolQueues, shown.step()})
    watch.start()
    worker.start()
    try:
        return _run_celery(
            name or f"gpu-{os.getpid()}",
            queues=[app.conf.task_default_queue],
            concurrency=threads,
            ready_file=ready_file,
            stop=stop,
            pool_queues=lambda: watch.queues if worker.takes_wakes() else frozenset(),
            hand_over=hand_over,
            health_port=health_port,
            needs={"database": fleets.database},
            any_of=fleets.redis,
        )
    finally:
        watch.stop()
        worker.stop()
        stop.ended()


def run_queue_worker(
    queues: Collection[str],
    *,
    concurrency: int,
    name: str = "",
    ready_file: Path | None = None,
    health_port: str = "",
) -> int:
    """Run a worker for sweeps, callbacks or workflows until it is stopped; return its exit status."""
    from jobs.ports import production_ports
    from jobs.tasks import deliver, sweep

    keep_connections()
    fleets = Fleets(lambda fleet: production_ports().leases(fleet))
    callbacks: DeliveryWorker | None = None
    parts: list[Drained] = []
    if CALLBACKS_QUEUE in queues:
        callbacks = wiring.make_delivery_worker()
        deliver.hand(callbacks)
        callbacks.start()
        parts.append(callbacks)
    if WORKFLOWS_QUEUE in queues:
        from workflows.tasks import follow

        due_runs = wiring.make_due_runs()
        follow.hand(due_runs)
        parts.append(due_runs)
    sweeps: SweepRunner | None = None
    if SWEEPS_QUEUE in queues:
        sweeps = wiring.make_sweep_runner()
        sweep.hand(sweeps)
    stop = OrderedStop(
        grace_seconds=QUEUE_WORKER_GRACE_SECONDS,
        drain=partial(_drain, parts),
        busy=lambda: sum(part.busy() for part in parts),
    )
    presence = wiring.make_presence(queues, sweeps)
    presence.start()
    try:
        return _run_celery(
            name or f"{'-'.join(queues)}-{os.getpid()}",
            queues=list(queues),
            concurrency=concurrency,
            ready_file=ready_file,
            stop=stop,
            health_port=health_port,
            needs={"database": fleets.database},
            any_of=fleets.redis if SWEEPS_QUEUE in queues else dict,
        )
    finally:
        if callbacks is not None:
            callbacks.stop(QUEUE_WORKER_GRACE_SECONDS)
        presence.stop()
        stop.ended()


def _drain(parts: Sequence[Drained]) -> None:
    for part in parts:
        part.drain()


def keep_connections() -> None:
    """Keep database connections between tasks for CONN_MAX_AGE, as Django does between requests. Celery
    closes them before and after each task, and a new one takes 15 ms on PostgreSQL."""
    app.conf.CELERY_DB_REUSE_MAX = sys.maxsize  # tasks
    signals.task_prerun.connect(close_old_connections)


def _run_celery(
    name: str,
    *,
    queues: list[str],
    concurrency: int,
    ready_file: Path | None,
    stop: OrderedStop,
    pool_queues: Callable[[], frozenset[str]] | None = None,
    hand_over: bool = True,
    health_port: str = "",
    needs: Mapping[str, Question] = MappingProxyType({}),
    any_of: Callable[[], Mapping[str, Question]] = dict,
) -> int:
    loop = TicksOfLoop.loop = Loop()
    PromptConnection.on_failed_try = staticmethod(loop.turn)
    needs = {"broker": lambda: "" if loop.consumes else "no connection", **needs}
    health = Health(loop, draining=lambda: stop.draining, needs=needs, any_of=any_of)
    port = HealthPort(health, health_port or settings.DISPATCHER.health_port)
    stop.on_replaced = port.stop
    port.start()
    app.steps["consumer"].add(TicksOfLoop)
    predecessor = Predecessor()
    if predecessor:  # both run for a while, and node names must be unique
        name = f"{name}.{os.getpid()}"
    node = name if "@" in name else f"{name}@{socket.gethostname()}"
    stop.install()
    if ready_file is not None:
        signals.worker_ready.connect(lambda **_: _write_ready(ready_file), weak=False)
    signals.worker_ready.connect(_keep_what_is_loaded)
    # the pending deprecation is known, and json is the only serializer, also as root
    warnings.simplefilter("ignore", CPendingDeprecationWarning)
    warnings.simplefilter("ignore", SecurityWarning)
    platforms.set_process_title("dispatcher", info=node)
    signals.worker_ready.connect(lambda **_: predecessor.tell_ready(), weak=False)
    worker = _worker_class(hand_over=hand_over and can_have_successor())(
        hostname=node,
        queues=queues,
        concurrency=concurrency,
        pool_cls="threads",
        quiet=True,
        without_mingle=True,  # workers share no state
        without_gossip=True,  # workers need no heartbeats of each other
        heartbeat_interval=HEARTBEAT_SECONDS,
        optimization="fair",
        pool_queues=pool_queues,
    )
    log.info("worker_starting", node=node, queues=queues, concurrency=concurrency)
    try:
        worker.start()
    finally:
        if ready_file is not None:
            _remove_ready(ready_file)
        port.stop()
    app.events.publisher.flush(1.0)  # the event worker-offline
    log.info("worker_stopped", node=node)
    return int(worker.exitcode or 0)


def _worker_class(*, hand_over: bool) -> Any:
    class ThreadedWorker(app.Worker):  # type: ignore[misc, name-defined]
        def install_platform_tweaks(self, worker: Any) -> None:
            super().install_platform_tweaks(worker)
            ordered_stop.install_signal_handlers(hand_over=hand_over)

    return ThreadedWorker


def _keep_what_is_loaded(**_: object) -> None:
    keep_what_is_loaded()


def _remove_ready(ready_file: Path) -> None:
    """Remove the file if this process wrote it; the next process may have replaced it."""
    with suppress(OSError):
        if ready_file.read_text().strip() == str(os.getpid()):
            ready_file.unlink()


def _write_ready(ready_file: Path) -> None:
    """Write the file atomically, so that no reader sees a part of it."""
    fresh = ready_file.with_suffix(".new")
    fresh.write_text(f"{os.getpid()}\n")
    fresh.replace(ready_file)
