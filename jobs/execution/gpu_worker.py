"""A GPU worker process: what it runs, when it may claim, and how it stops.

`work` is called by Celery tasks from many threads; the watcher is one thread that looks once a second for
what changed outside (a cancel, a pushed result, a deadline) and does again what Redis did not take.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, connection

from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.models import Process
from gpus.protocol import REGISTRY_CHANGED, Lease, LeaseRef, ModelSpec
from gpus.registry import queries as fleet
from gpus.runners.base import Runner
from gpus.runners.registry import runner_for
from jobs.execution import dispatch, slot_loop
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.change_listener import Listener
from jobs.execution.completion import Settlement
from jobs.execution.dispatch import WorkReport
from jobs.execution.external_changes import changes_for
from jobs.execution.group_commit import GroupCommitWriter, MakeWriter
from jobs.execution.prefetched import Followers
from jobs.execution.presence import Presence, process_name
from jobs.execution.row_prefetch import ReadAhead
from jobs.execution.run_steps import Order
from jobs.execution.self_notifications import Echoes
from jobs.execution.server_backoff import ServerRests
from jobs.execution.switched_off import interrupt_switched_off
from jobs.execution.time_slice import Turn, some_short_turns
from jobs.execution.uncertain_claims import Unanswered
from jobs.execution.worker_signs import Signs
from jobs.execution.written_starts import WrittenStarts
from jobs.ports import Ports

log = structlog.get_logger()

WATCH_SECONDS = 1.0
MAX_BACKLOG = 1000


class GpuWorker:
    """name: unique to this process; it is what leases are held under. threads: that call `work` at most;
    0 for what the settings say."""

    def __init__(
        self,
        ports: Ports,
        *,
        name: str = "",
        runners: Callable[[ModelSpec], Runner] | None = None,
        writer: MakeWriter = GroupCommitWriter,
        threads: int = 0,
    ) -> None:
        self.ports = ports
        self.threads = threads or settings.DISPATCHER.worker_threads
        self.name = name or process_name()
        self.runner_for = runners or (lambda spec: runner_for(spec, ports.transport))
        self.settlement = Settlement(ports, name=self.name, on_lost=self._on_lost, writer=writer)
        self.starts = WrittenStarts(ports, self.settlement.keeper.refs)
        self.ahead = ReadAhead(ports)
        self.followers = Followers(settings.DISPATCHER.claim_ahead_seconds)
        self.listener: Listener | None = None
        self.presence: Presence | None = None
        self.echoes = Echoes()
        self.show_run: Callable[[Lease], None] = lambda lease: None
        """Tells Flower what is run now; only of runs that take their time. Must not wait or raise."""
        self.warm: Callable[[], Sequence[str] | None] = lambda: None
        """What this process has loaded: better to claim than others. None: it holds none. Must not wait."""
        self.on_registry: Callable[[], None] = lambda: None
        """Told that servers or models were registered. Must not wait or raise."""
        self._runs: dict[str, tuple[Lease, AttemptRun]] = {}
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._interrupted = threading.Event()
        self._stopped = threading.Event()
        self._nudged = threading.Event()
        self._working = 0
        self._paused_until = 0.0
        self.rests = ServerRests()
        self.unanswered = Unanswered()
        self.signs = Signs(self)
        self._generation_seen: dict[str, tuple[float, bool]] = {}
        self._watcher = threading.Thread(target=self._watch, name="run-watcher", daemon=True)
        self._signing = threading.Thread(target=self._sign, name="worker-signs", daemon=True)

    # -- life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.presence is not None:
            self.presence.start()
        self.settlement.start()
        self._watcher.start()
        self._signing.start()
        self.ahead.start()
        if self.listener is not None:
            self.listener.start()

    def work(self, pool: str, host: str | None = None) -> list[WorkReport]:
        """Claims and runs until nothing is left or this thread's turn is over."""
        with self._lock:
            self._working += 1
        try:
            return self._work(pool, host)
        finally:
            with self._lock:
                self._working -= 1

    def _work(self, pool: str, host: str | None) -> list[WorkReport]:
        with self.ports.database():
            fleet_name = fleet.fleet_of(pool)
        clock = self.ports.clock
        turn = Turn(
            settings.DISPATCHER.hand_back_seconds, clock.monotonic(), self._is_crowded, some_short_turns()
        )
        reports: list[WorkReport] = []
        claimed = slot_loop.claim_next(self, fleet_name, pool, host)
        while claimed is not None:
            claimed, report = dispatch.run_claimed(self, claimed, turn)
            reports.append(report)
            if claimed is None and not self._draining.is_set():
                if turn.is_over(clock.monotonic(), report.seconds):
                    if self.ports.send_wakes([Wakes(pool, host, 1)]):
                        break
                    # who can't publish its hand-back keeps claiming: the slot must not wait for a dead
                    # broker, but it is free only once its end is committed
                    self.until_done(self.settlement.writer.submit(lambda: None))
                claimed = slot_loop.claim_next(self, fleet_name, pool, host)
        return reports

    def drain(self) -> None:
        """No more claims; polled runs are handed over, the others go on."""
        self._draining.set()
        self._order_all(Order.HAND_OVER)

    def interrupt(self) -> None:
        """The grace is over: what still runs is stopped at its GPU and goes back into the line at no cost."""
        self._interrupted.set()
        self.drain()
        self._order_all(Order.INTERRUPT)

    def busy(self) -> int:
        """Runs in hand."""
        return len(self._runs)

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Writes what is queued and lets go of everything else."""
        self._draining.set()
        self._stopped.set()
        self._nudged.set()
        if self.listener is not None:
            self.listener.stop()
        self.ahead.stop()
        self.signs.end()
        self.settlement.stop(timeout_seconds)
        if self.presence is not None:
            self.presence.stop()

    def _is_crowded(self) -> bool:
        """Every thread works: wakes, of other pools perhaps, wait for one."""
        return self._working >= self.threads

    # -- for claims and dispatch ----------------------------------------------------------------------

    def may_claim(self) -> bool:
        """Not while draining, nor while ends can't be written."""
        return not (
            self._draining.is_set()
            or self.settlement.writer.failing
            or self.settlement.writer.backlog > MAX_BACKLOG
            or self.ports.clock.monotonic() < self._paused_until
        )

    def takes_wakes(self) -> bool:
        """Not while another key layout is in use: a wake that it can't use is one that others miss."""
        return self.ports.layouts.leads()

    def pause_claims(self, seconds: float = 1.0) -> None:
        self._paused_until = self.ports.clock.monotonic() + seconds

    def must_await_starts(self, fleet_name: str, leases: Leases) -> bool:
        """For one lease time after a new generation, starts are durable before anything is sent: a run that
        the index does not know of may still be written. Not where no job was held when it was made."""
        now = self.ports.clock.monotonic()
        checked_at, young = self._generation_seen.get(fleet_name, (-1e9, True))
        if now - checked_at < 1.0:
            return young
        try:
            age = leases.unsure_age_seconds()
        except LeasingUnavailable:
            age = None
        young = age is None or age < settings.DISPATCHER.lease_seconds
        self._generation_seen[fleet_name] = (now, young)
        return young

    @contextmanager
    def running(self, lease: Lease, run: AttemptRun) -> Iterator[None]:
        with self._lock:
            self._runs[lease.attempt_id] = (lease, run)
        for event, order in ((self._draining, Order.HAND_OVER), (self._interrupted, Order.INTERRUPT)):
            if event.is_set():
                run.order(order)
        try:
            yield
        finally:
            with self._lock:
                self._runs.pop(lease.attempt_id, None)

    def wait(self, run: AttemptRun, seconds: float) -> None:
        """A pause of a run; a long one gives its database connection back first."""
        if seconds > 1.0:
            connection.close()
        run.woken.wait(seconds)

    def in_background(self, work: Callable[[], None]) -> None:
        """In a thread of its own, which gives its database connection back. Raises RuntimeError if none can
        be started."""

        def do() -> None:
            try:
                work()
            except Exception:
                log.exception("background_work_failed")
            finally:
                connection.close()

        threading.Thread(target=do, name="beside-a-run", daemon=True).start()

    def until_done(self, written: Future[Any]) -> None:
        """For those who may not go on before a commit; the keeper keeps their lease meanwhile."""
        wait_for_futures([written])

    # -- the watcher ------------------------------------------------------------------------------------

    def nudge(self, job_ids: Sequence[str]) -> None:
        """These jobs changed: look now. Called by the listener; costs nothing for jobs run elsewhere, nor for
        what was announced from here."""
        if REGISTRY_CHANGED in job_ids:
            self.on_registry()
        asked = self.echoes.without(job_ids)
        with self._lock:
            ours = [*(lease for lease, _ in self._runs.values()), *self.followers.leases()]
        if any(lease.job_id in asked for lease in ours):
            self._nudged.set()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self._nudged.wait(WATCH_SECONDS)
            self._nudged.clear()
            try:
                self.look()
            except DatabaseError as error:
                log.warning("watch_without_database", error=str(error).strip())
                connection.close()
            except Exception:
                log.exception("watch_failed")
        connection.close()

    def _sign(self) -> None:
        """Apart from the watcher, whose looks take long while Redis does not answer."""
        while not self._stopped.wait(WATCH_SECONDS):
            try:
                self.signs.tell()
            except Exception:
                log.exception("sign_failed")

    def look(self) -> None:
        """One look at everything in hand (a step: the simulator calls it)."""
        self.signs.tell()
        self.settlement.release_again()
        slot_loop.return_unanswered(self)
        slot_loop.return_overdue_followers(self)
        self.ahead.let_go()
        with self._lock:
            runs = dict(self._runs)
        for _, run in runs.values():
            run.check_time()
        changed = changes_for([*(lease for lease, _ in runs.values()), *self.followers.leases()])
        self.followers.cancel(changed.cancelled)
        for lease, run in runs.values():
            if lease.job_id in changed.cancelled:
                run.order(Order.CANCEL)
            if lease.attempt_id in changed.pushed:
                run.nudge()
        interrupt_switched_off(runs.values(), changed.off)

    def _order_all(self, order: Order) -> None:
        with self._lock:
            runs = [run for _, run in self._runs.values()]
        for run in runs:
            run.order(order)

    def _on_lost(self, ref: LeaseRef) -> None:
        with self._lock:
            if found := self._runs.get(ref.attempt_id):
                found[1].order(Order.LOST)
        self.followers.lose(ref)


_current: GpuWorker | None = None


def create_worker(
    ports: Ports,
    *,
    name: str = "",
    threads: int = 0,
    runners: Callable[[ModelSpec], Runner] | None = None,
) -> GpuWorker:
    """The worker of this process; made once, by the command that runs it. runners: how it reaches its GPUs;
    None: over the network. threads: of its Celery worker."""
    global _current
    if _current is not None:
        raise RuntimeError("this process has its GPU worker already")
    echoes = Echoes()
    ports = replace(ports, announce=echoes.of(ports.announce))
    _current = GpuWorker(ports, name=name, runners=runners, threads=threads)
    _current.echoes = echoes
    _current.listener = Listener(settings.REDIS_URL, _current.nudge)
    _current.presence = Presence(ports, Process.Kind.GPU, name=_current.name, ready=_current.starts.ready)
    return _current


def current_worker() -> GpuWorker:
    if _current is None:
        raise RuntimeError("this process is not a GPU worker: start it by `manage.py gpu_worker`")
    return _current
