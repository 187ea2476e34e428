"""The dispatcher's processes under virtual time, with a database, a Valkey and simulated GPUs.

Submits, claims, runs, group commits, renewals and sweeps are the product's own, in fibers
(`verification.simulation`); a GPU only waits in virtual time. There are no faults: see `manage.py simulate`
for those. Real time is the cost, virtual time the throughput.
"""

from __future__ import annotations

import itertools
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.conf import settings

from benchmarks.big_fleet_gpus import SimulatedGpus
from benchmarks.big_fleet_load import BAND_NAMES, JobRequest, Load, Sender
from benchmarks.big_fleet_meters import DatabaseMeter, Ledger, MeteredLeases, Sections
from foundation import ids
from gpus.leasing.values import Wakes
from gpus.models import ModelConfig, Placement, Pool, Server
from jobs.domain.errors import Refused
from jobs.events.announce import Announcer
from jobs.models import Tenant
from jobs.ports import Ports
from jobs.submission.request import Submit, SubmitRequest
from jobs.submission.submit import submit_batch
from jobs.sweeps.registry import Entry, Sweeps
from jobs.sweeps.runner import Runner
from verification.simulation.roles import FiberWorker, single_wakes
from verification.simulation.scheduler import START, Process, Scheduler, VirtualClock

HOP_SECONDS = 0.004
"""Delay of a wake in the broker."""
BATCH = 500
PROMPT = "a lighthouse in a storm, oil on canvas, " * 6
_LEFT_OUT = ("due_callbacks", "retention")
"""Sweeps without work here."""


class System:
    """The dispatcher's processes with all meters. client: of an empty Valkey. broken: errors; the list should
    be empty."""

    def __init__(
        self, load: Load, client: Any, database: DatabaseMeter, sections: Sections, ledger: Ledger
    ) -> None:
        self.load, self.size, self.sections, self.ledger = load, load.size, sections, ledger
        self.database = database
        self.scheduler = Scheduler(load.size.seed)
        self.outside = Process("outside")
        self.gpus = SimulatedGpus(self.scheduler, ledger, load.size.swap_seconds)
        self.broken: list[str] = []
        self.wakes = 0
        self._client = client
        self.fleets: dict[str, MeteredLeases] = {}
        self._submitted = 0
        self._pks: dict[int, int] = {}
        ids.clock = lambda: START.timestamp() + self.scheduler.now
        ids.chance_bits = random.Random(f"{load.size.seed} ids").getrandbits  # type: ignore[assignment]
        self.ports = Ports(
            clock=VirtualClock(self.scheduler, self.outside),
            leases=self._leases,
            send_wakes=self._send_wakes,
            wake_callbacks=lambda callbacks: None,
            announce=Announcer(settings.REDIS_URL),
            after=self._after,
            transport=self.gpus,
            parallel_probes=1,
        )
        self.workers: list[FiberWorker] = []
        self._next_worker = itertools.count()

    # -- set-up ----------------------------------------------------------------------------------------

    def register(self) -> None:
        """Insert the fleet and its tenants as rows (over the API thousands take minutes), then build the
        index by its sweep."""
        rows = [
            Tenant(name=one.name, highest_band="urgent" if one.is_urgent else "normal")
            for one in self.load.senders
        ]
        Tenant.objects.bulk_create(rows, batch_size=500)
        by_name = dict(Tenant.objects.values_list("name", "pk"))
        self._pks = {one.number: by_name[one.name] for one in self.load.senders}
        pools = [
            Pool(name=f"pool-{n}", fleet=f"fleet-{n % self.size.fleets}" if self.size.fleets > 1 else "main")
            for n in range(self.size.pools)
        ]
        configs = [
            ModelConfig(name=model, pool=pool, max_run_seconds=3600.0)
            for n, pool in enumerate(pools)
            for model in self.size.models_of(n)
        ]
        servers = [
            Server(name=name, slots=slots, pool=pools[pool]) for name, slots, pool in self.size.servers()
        ]
        placements = [
            Placement(server=server, model=config, endpoint=f"http://{server.name}/{config.name}")
            for server in servers
            for config in configs
            if config.pool_id == server.pool_id
        ]
        Pool.objects.bulk_create(pools)
        ModelConfig.objects.bulk_create(configs, batch_size=500)
        Server.objects.bulk_create(servers, batch_size=500)
        Placement.objects.bulk_create(placements, batch_size=500)
        self._spawn("sweeps", self._tick)
        self.scheduler.run(3.0)

    def start(self) -> None:
        for number in range(self.size.workers):
            process = Process(f"worker-{number}")
            worker = FiberWorker(self.ports, self.scheduler, process)
            _meter(worker, self.sections)
            worker.start()
            self.workers.append(worker)

    def fill_line(self, on_progress: Callable[[int], None] = lambda submitted: None) -> None:
        """Submit the initial queue, all of it from floods."""
        senders = itertools.cycle(self.load.floods)
        while (missing := self.size.waiting - self.waiting) > 0:
            self.submit(next(senders), min(BATCH, missing))
            on_progress(self._submitted)

    def open(self) -> None:
        """From now on jobs come at random, and floods keep the queue at its length."""
        self._spawn("arrivals", self._arrive)
        self._spawn("floods", self._top_up)

    # -- while it runs ----------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._submitted - self.gpus.began

    def run(self, until: float) -> None:
        self.scheduler.run(until)
        if self.broken:
            raise RuntimeError(f"{len(self.broken)} calls broke, the first:\n{self.broken[0]}")

    def submit(self, sender: Sender, count: int) -> None:
        """Submit one batch, or one job."""
        now = self.scheduler.now
        asked = [self.load.job(sender) for _ in range(count)]
        requests = [_request(one, sender, now) for one in asked]
        with self.sections.of("submit, one job" if count == 1 else "submit, batches", count):
            done = submit_batch(requests, tenant=self._pks[sender.number], ports=self.ports)
        refused = [item for item in done.items if isinstance(item, Refused)]
        if refused:
            raise refused[0]
        self._submitted += count

    def _arrive(self) -> None:
        while (following := self.load.next_arrival()) is not None:
            seconds, sender = following
            self.scheduler.sleep(seconds)
            self.submit(sender, 1)

    def _top_up(self) -> None:
        senders = itertools.cycle(self.load.floods)
        while True:
            self.scheduler.sleep(1.0)
            while (missing := self.size.waiting - self.waiting) > 0:
                self.submit(next(senders), min(BATCH, missing))

    def _tick(self) -> None:
        process = Process("sweeps")
        entries = {
            name: self._metered(name, one)
            for name, one in Sweeps().entries().items()
            if name not in _LEFT_OUT
        }
        runner = Runner(self.ports, lambda: entries, in_thread=lambda work: self._spawn(process.name, work))
        while True:
            runner.tick()
            self.scheduler.sleep(1.0)

    def _metered(self, name: str, entry: Entry) -> Entry:
        def sweep(ports: Ports) -> Any:
            with self.sections.of(f"sweep {name}"):
                count = entry.sweep(ports)
            if count.failed:
                self.broken.append(f"the sweep {name} failed {count.failed} times: {count.notes}")
            return count

        return replace(entry, sweep=sweep)

    def _work(self, worker: FiberWorker, pool: str, host: str | None) -> None:
        for report in worker.work(pool, host):
            if report.outcome != "completed":
                self.broken.append(f"a run ended {report.outcome}: {report}")

    # -- ports -----------------------------------------------------------------------------------------

    def _leases(self, fleet: str) -> MeteredLeases:
        if fleet not in self.fleets:
            self.fleets[fleet] = MeteredLeases(self._client, fleet, self._now_ms)
        return self.fleets[fleet]

    def _now_ms(self) -> int:
        return int((START.timestamp() + self.scheduler.now) * 1000)

    def _send_wakes(self, wakes: Sequence[Wakes]) -> int:
        sent = single_wakes(wakes) if self.workers else []
        for pool, host in sent:
            self._spawn("broker", partial(self._deliver, pool, host))
        self.wakes += len(sent)
        return len(sent)

    def _deliver(self, pool: str, host: str | None) -> None:
        self.scheduler.sleep(HOP_SECONDS)
        worker = self.workers[next(self._next_worker) % len(self.workers)]
        self._spawn(worker.name, partial(self._work, worker, pool, host))

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        def later() -> None:
            self.scheduler.sleep(seconds)
            work()

        self._spawn("later", later)

    def _spawn(self, what: str, work: Callable[[], Any]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception:
                self.broken.append(f"{what}: {traceback.format_exc()}")

        self.scheduler.spawn(self.outside, guarded)


def _meter(worker: FiberWorker, sections: Sections) -> None:
    """Meter commits, renewals and checks of one worker process."""
    writer: Any = worker.completion.writer
    commit, step, look = writer._commit, worker.completion.keeper.step, worker.watch

    def metered(name: str, work: Callable[..., Any], *given: Any, count: int = 1) -> Any:
        with sections.of(name, count):
            return work(*given)

    writer._commit = lambda batch: metered("commit", commit, batch, count=len(batch))
    vars(worker.completion.keeper)["step"] = lambda now: metered("renew", step, now)
    vars(worker)["look"] = lambda: metered("watch", look)


def _request(asked: JobRequest, sender: Sender, now: float) -> SubmitRequest:
    payload = {
        "prompt": PROMPT,
        "seconds": asked.seconds,
        "came": now,
        "kind": sender.kind,
        "band": BAND_NAMES[asked.priority],
    }
    return SubmitRequest(Submit(model=asked.model, payload=payload, priority=asked.priority))
