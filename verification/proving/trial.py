"""A trial: the system, its surroundings, and operations for the faults."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dispatcher_project.supervisor.signs import http_says_ok
from foundation.program import OWN_COMMAND
from verification.proving import sentinel
from verification.proving.children import Child, Children
from verification.proving.clients import WatchedClient
from verification.proving.clocks import Clocks
from verification.proving.cluster import ClusterValkeys
from verification.proving.feeder import Feeder
from verification.proving.files import PART_BYTES
from verification.proving.fleet import Fleet
from verification.proving.leftovers import left_in_bucket, left_in_folder
from verification.proving.options import Options
from verification.proving.pinned_models import PINNED
from verification.proving.ports import free_ports
from verification.proving.postgresql import OwnPostgresql
from verification.proving.proxies import Proxies
from verification.proving.receivers import CallbackReceiver
from verification.proving.recovery import RunSigns
from verification.proving.schedule_mix import PlannedSchedule, planned_schedules
from verification.proving.seaweed import KEY, SECRET, OwnSeaweed
from verification.proving.sentinel import SentinelValkeys
from verification.proving.system import (
    CannotProve,
    OwnSystem,
    RemoteSystem,
    System,
    UpSystem,
    clean_environment,
)
from verification.proving.terminal import say
from verification.proving.valkey import OwnValkey
from verification.proving.watch import Watch

if TYPE_CHECKING:
    from verification.proving.state import State

TENANTS = ("ada", "bob", "cyd")
SECOND_WORKER = "second_worker"
STORE, BUCKET = "store", "prove"
"""The proxy's route to the S3 server, and the bucket there."""
LONGEST_RUN_SECONDS = 7.0
SHORTEST_PERIOD_SECONDS = 10.0
"""Of schedules of a dispatcher that is not the trial's own: the default of its setting."""
QUIET_SECONDS = 5.0
"""A callback that was due must be tried within this time after a fault."""
_WORKER_SECONDS = 60.0
CLOCK_WORDS = ("gpu_worker", "beat", "sweeps", "callbacks", "valkey-server")
_DJANGO = ("web", "gpu_worker", "sweeps", "callbacks", "beat")


class Trial:
    """Made in steps by `open`; `close` ends everything started by then."""

    system: System
    fleet: Fleet
    receiver: CallbackReceiver
    feeder: Feeder
    watch: Watch
    load: Child

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = (options.data_dir or Path(tempfile.mkdtemp(prefix="prove-"))).resolve()
        self.report = (options.report or self.folder / "prove").resolve()
        self.report.mkdir(parents=True, exist_ok=True)
        self.children = Children(self.report / "log", clean_environment())
        self.prefix = "prove" if options.starts_its_own else f"prove-{secrets.token_hex(3)}"
        self.proxies: Proxies | None = None
        self.clocks: Clocks | None = None
        self.valkey: OwnValkey | None = None
        self.sentinel: SentinelValkeys | None = None
        self.cluster: ClusterValkeys | None = None
        self.postgresql: OwnPostgresql | None = None
        self.seaweed: OwnSeaweed | None = None
        self.store_settings: dict[str, str] = {"DISPATCHER_ARTIFACT_PART_BYTES": str(PART_BYTES)}
        self.pinned: Child | None = None
        self.state: State | None = None
        self.sqlite_file = ""
        self.flushed_at = 0.0
        self.forgotten: list[tuple[float, float]] = []
        """When commits were lost with a database, Unix seconds."""
        self.planned_schedules: list[PlannedSchedule] = []
        self.excuses: dict[str, list[tuple[float, float]]] = {}
        self._ports = free_ports()
        self._opened: list[Any] = []
        self._processes: tuple[str, ...] = ()

    @property
    def ledger(self) -> Path:
        """The file with the clients' records."""
        return self.report / "ledger.jsonl"

    # -- start and stop ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start everything. Raises CannotProve."""
        self.fleet = Fleet.planned(self.prefix, self.children, self.report, self._ports)
        self._start_system()
        self.fleet.start()
        keys, webhook_secrets = self._tenants()
        self._register()
        self.receiver = CallbackReceiver(
            self.children, self.report / "callbacks.jsonl", next(self._ports), webhook_secrets
        )
        self.receiver.start()
        self._start_load(keys)
        if self.system.settings():
            self.start_worker(SECOND_WORKER)
        if self.options.starts_its_own:
            self.start_pinned()
        self._processes = tuple(self.system.pids())
        self.signs = RunSigns(self.fleet)
        self.watch = Watch(self.state, self.ledger, self.pids)
        at_end = self.state.close if self.state else lambda: None
        self.feeder = Feeder(self.load, self._waiting, self.options.jobs, at_end)
        self.watch.start()
        self.feeder.start()
        self._opened += [self.watch, self.feeder]
        self._begin_schedules(sorted(keys))

    def _begin_schedules(self, tenants: Sequence[str]) -> None:
        shortest = 0.0 if self.options.starts_its_own else SHORTEST_PERIOD_SECONDS
        self.planned_schedules = planned_schedules(
            prefix=self.prefix, tenants=tenants, shortest=shortest, shorten=self.options.shorten
        )
        self.load.ask(do="schedules", shortest=shortest)

    def close(self) -> None:
        """End everything that was started, the dispatcher first."""
        for thread in reversed(self._opened):
            thread.stop()
        if self.state is not None and not self.options.starts_its_own:
            self.state.remove_servers([gpu.name for gpu in self.fleet.gpus])
        if hasattr(self, "system"):
            self.system.stop()
        self.children.close()
        if self.valkey is not None:
            self.valkey.stop()
        for valkeys in (self.sentinel, self.cluster):
            if valkeys is not None:
                valkeys.stop()
        if self.postgresql is not None:
            self.postgresql.stop()
        if self.seaweed is not None:
            self.seaweed.close()

    def _start_system(self) -> None:
        options = self.options
        if options.url:
            self.system = RemoteSystem(options.url, options.api_key)
            return
        if options.up_json is not None:
            self.system = UpSystem(options.up_json)
            self._start_proxies({})
        else:
            self._start_own()
        self._set_up_django()

    def _start_own(self) -> None:
        targets: dict[str, str] = {}
        self.clocks = Clocks(self.report / "clocks", CLOCK_WORDS)
        listens = {name: next(self._ports) for name in sentinel.NAMES}
        if self.options.redis == "sentinel":
            targets |= {name: f"127.0.0.1:{port}" for name, port in listens.items()}
        else:
            self.valkey = self._start_valkey()
            targets["valkey"] = f"127.0.0.1:{self.valkey.port}"
        direct = self._start_database()
        if direct:
            parts = urlsplit(direct)
            targets["postgresql"] = f"{parts.hostname or '127.0.0.1'}:{parts.port or 5432}"
        if self.options.store == "s3":
            targets[STORE] = f"127.0.0.1:{self._start_seaweed().port}"
        proxies = self._start_proxies(targets)
        environment = {**self.clocks.environment, "DISPATCHER_SCHEDULE_MIN_SECONDS": "1"}
        if direct:
            login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
            netloc = f"{login}127.0.0.1:{proxies.port('postgresql')}"
            environment["DATABASE_URL"] = parts._replace(netloc=netloc).geturl()
        if self.seaweed is not None:
            self.store_settings |= _s3_settings(proxies.port(STORE))
        environment |= self.store_settings
        if self.options.redis == "sentinel":
            self.sentinel = self._start_sentinel(listens, proxies)
            environment |= self.sentinel.environment
            redis_url = self.sentinel.environment["REDIS_URL"]
        else:
            assert self.valkey is not None
            environment["REDIS_URL"] = f"redis://127.0.0.1:{proxies.port('valkey')}/0"
            redis_url = self.valkey.url
        if self.options.redis == "cluster":
            self.cluster = ClusterValkeys(self.report / "cluster", self._ports)
            self.cluster.start()
            environment["BROKER_URL"] = environment["REDIS_URL"]
            environment["REDIS_URL"] = redis_url = self.cluster.url
        say("starting a dispatcher of our own")
        self.system = OwnSystem(
            self.folder,
            self.children,
            environment=environment,
            redis_url=redis_url,
            database_url=direct,
            ports=self._ports,
        )

    def _start_valkey(self) -> OwnValkey:
        assert self.clocks is not None
        environment = {**os.environ, **self.clocks.environment}
        valkey = OwnValkey(self.report / "valkey", port=next(self._ports), environment=environment)
        valkey.start()
        return valkey

    def _start_seaweed(self) -> OwnSeaweed:
        folder = self.report / "seaweed"
        folder.mkdir(parents=True, exist_ok=True)
        self.seaweed = OwnSeaweed(folder)
        self.seaweed.start()
        self.seaweed.make_bucket(BUCKET)
        return self.seaweed

    def _start_sentinel(self, listens: Mapping[str, int], proxies: Proxies) -> SentinelValkeys:
        ports = tuple(next(self._ports) for _ in range(sentinel.SENTINELS))
        known_as = {name: proxies.port(name) for name in listens}
        valkeys = SentinelValkeys(
            self.report / "valkey", listens=listens, known_as=known_as, sentinel_ports=ports
        )
        self.sentinel = valkeys  # must also be stopped if it does not start
        valkeys.start()
        return valkeys

    def _start_database(self) -> str:
        """Return its direct URL; empty for SQLite."""
        if self.options.database != "own":
            return self.options.database
        self.postgresql = OwnPostgresql(self.children.logs / "postgresql.log", next(self._ports))
        self.postgresql.start()
        return self.postgresql.url

    def _start_proxies(self, targets: dict[str, str]) -> Proxies:
        behind = {gpu.name: f"127.0.0.1:{gpu.port}" for gpu in self.fleet.behind_proxy}
        self.proxies = Proxies(self.children, {**targets, **behind})
        for gpu in self.fleet.behind_proxy:
            gpu.entrance = self.proxies.port(gpu.name)
        return self.proxies

    def _set_up_django(self) -> None:
        """Let this process use the dispatcher's stores, but past the proxy."""
        os.environ.update(self.system.settings())
        os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = self.system.database_url, self.system.redis_url
        if self.sentinel is not None:
            os.environ.update(self.sentinel.environment)
        os.environ.update(self.store_settings)
        os.environ["DISPATCHER_LOG_LEVEL"] = "ERROR"
        import django

        django.setup()
        from verification.proving.state import State

        self.state = State(self.system.redis_url)
        if self.system.database_url.startswith("sqlite:"):
            self.sqlite_file = unquote(urlsplit(self.system.database_url).path)

    def _tenants(self) -> tuple[dict[str, str], dict[str, str]]:
        if self.state is None:
            return {"outside": self.options.api_key}, {}
        return self.state.make_tenants([f"{self.prefix}-{name}" for name in TENANTS])

    def _register(self) -> None:
        client = WatchedClient(self.system.url, self.system.operator_key, retry_seconds=30.0)
        for body in self.fleet.registrations():
            client.register(body)

    def _start_load(self, keys: dict[str, str]) -> None:
        plan = {
            "url": self.system.url,
            "keys": keys,
            "seed": self.options.seed,
            "shorten": self.options.shorten,
            "prefix": self.prefix,
            "ledger": str(self.ledger),
            "callback_url": self.receiver.url,
            "pinned_log": str(self.pinned_log),
        }
        file = self.report / "load.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(plan))
        command = [sys.executable, "-m", "verification.proving.load", str(file)]
        self.load = self.children.start("load", *command, talks=True)
        self.load.receive()
        file.unlink()  # the file contains keys

    def start_standby(self) -> OwnPostgresql:
        """Return an asynchronous standby of the trial's PostgreSQL that has caught up."""
        assert self.postgresql is not None
        log = self.children.logs / "postgresql.log"
        standby = OwnPostgresql(log, next(self._ports), of=self.postgresql)
        standby.start()
        return standby

    def follow(self, standby: OwnPostgresql) -> None:
        """Make the standby the database of the dispatcher and of the trial."""
        assert self.postgresql is not None
        assert self.proxies is not None
        assert self.state is not None
        self.proxies.cut("postgresql")
        self.proxies.aim("postgresql", standby.port)
        self.state.use_database_port(standby.port)
        self.postgresql.stop()
        self.postgresql = standby

    def begin_losing_commits(self) -> None:
        """From now on commits may be lost."""
        self.forgotten.append((time.time(), float("inf")))
        self.watch.forgets = True

    def end_losing_commits(self) -> None:
        """Commits are safe again."""
        begin, _ = self.forgotten.pop()
        self.forgotten.append((begin, time.time()))

    @property
    def pinned_server(self) -> str:
        """The server of the pinned worker."""
        return f"{self.prefix}-{PINNED}"

    @property
    def pinned_log(self) -> Path:
        """The log of its runs."""
        return self.report / "gpu-pinned.jsonl"

    def start_pinned(self) -> Child:
        """Start the pinned worker, with one slot; return once it takes jobs."""
        models = ["--gpu", "none", "--slots", "1", "--budget-mb", "500"]
        models += ["--models", "verification.proving.pinned_models"]
        self.pinned = self.start_worker(self.pinned_server, *models)
        if self.state is not None:
            self.state.pinned = self.pinned_server
        return self.pinned

    def start_worker(self, name: str, *options: str, **environment: str) -> Child:
        """Start another GPU worker of this dispatcher; return once it takes jobs. options: of its command."""
        ready = self.children.logs / f"{name}.ready"
        ready.unlink(missing_ok=True)
        called = ["--name", name.replace("_", "-"), "--ready-file", str(ready), *options]
        command = [*OWN_COMMAND, "gpu_worker", *called]
        clocks = self.clocks.environment if self.clocks else {}
        broker = self.sentinel.environment if self.sentinel else {}
        settings = {**self.system.settings(), **clocks, **broker, **self.store_settings, **environment}
        worker = self.children.start(name, *command, environment=settings)
        until = time.monotonic() + _WORKER_SECONDS
        while not ready.exists():
            if not worker.is_running() or time.monotonic() > until:
                raise CannotProve(f"{name} did not start; see its log in {self.children.logs}")
            time.sleep(0.1)
        return worker

    def _waiting(self) -> int | None:
        return self.state.waiting() if self.state is not None else None

    # -- used by faults ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise CannotProve if a record can't be written any more."""
        if not self.load.is_running():
            raise CannotProve(f"the load has exited; see {self.children.logs / 'load.log'}")

    def is_whole(self) -> bool:
        """Return True if every slot is free or works, and every process runs."""
        if self.state is None:
            return True
        self.signs.read()
        pids = self.system.pids()
        views = self.state.slot_views([gpu.name for gpu in self.fleet.gpus])
        works = views is not None and all(
            view.state in ("free", "settling") or (view.attempt_id or "") in self.signs.running
            for view in views.values()
        )
        return works and all(name in pids for name in self._processes)

    def pids(self) -> dict[str, int]:
        """Return the processes whose memory is measured."""
        ours = {f"prove: {name}": pid for name, pid in self.children.pids().items() if name != "up"}
        if f"prove: {SECOND_WORKER}" in ours:
            ours[SECOND_WORKER] = ours.pop(f"prove: {SECOND_WORKER}")
        valkey = {"valkey": self.valkey.pid} if self.valkey is not None and self.valkey.pid else {}
        return {**self.system.pids(), **valkey, **ours, "prove": os.getpid()}

    def django_pids(self) -> dict[str, int]:
        """Return the processes that write to the database."""
        pids = self.pids()
        return {name: pids[name] for name in (*_DJANGO, SECOND_WORKER) if name in pids}

    def web_answers(self) -> bool:
        """Return True if the web process answers, even after a client's time-out."""
        parts = urlsplit(self.system.url)
        return http_says_ok(parts.hostname or "", parts.port or 80, "/readyz?strict=1")

    def runs_begin_since(self, at: float) -> bool:
        """Return True if a run began in every pool with waiting jobs: at the end of a trial none may be
        left."""
        self.signs.read()  # `check` is not called while a fault lasts
        began: dict[str, float] = {}
        for gpu in self.fleet.gpus:
            latest = max((self.signs.last_began.get(slot, 0.0) for slot in gpu.slot_names), default=0.0)
            began[gpu.pool] = max(began.get(gpu.pool, 0.0), latest)
        behind = [pool for pool, last in began.items() if last < at]
        return all(self.state is not None and self.state.waiting(pool) == 0 for pool in behind)

    def ticked_since(self, at: float) -> bool:
        """Return True if a sweep has ended since then."""
        return self.state is not None and self.state.last_tick() >= at

    def called_back_since(self, at: float) -> bool:
        """Return True if a callback arrived, or none is due, as at the end of a trial."""
        if self.receiver.last_at() >= at:
            return True
        pending = self.state.pending_callbacks() if self.state and time.time() - at > QUIET_SECONDS else None
        return pending is not None and pending[0] == 0

    def left_in_store(self) -> list[str]:
        """Return what the store of artifacts has beside objects."""
        if self.seaweed is not None:
            return list(left_in_bucket(self.seaweed.client(), BUCKET))
        return list(left_in_folder(self.artifact_folder))

    @property
    def artifact_folder(self) -> Path:
        """The folder of a local store."""
        from django.conf import settings

        return Path(settings.ARTIFACT_FOLDER)

    def begin_excuse(self, server: str) -> None:
        """From now on this server reports wrongly: requests to it while it is full are not the dispatcher's
        fault."""
        self.excuses.setdefault(server, []).append((time.time(), float("inf")))

    def end_excuse(self, server: str) -> None:
        """The server reports correctly again; the excuse lasts until the runs that it denied have ended."""
        begin, _ = self.excuses[server].pop()
        self.excuses[server].append((begin, time.time() + LONGEST_RUN_SECONDS + 3.0))


def _s3_settings(port: int) -> dict[str, str]:
    """Return the variables of a dispatcher whose store is behind this port of the proxy."""
    return {
        "DISPATCHER_ARTIFACT_STORE": f"s3://{BUCKET}?endpoint=http://127.0.0.1:{port}&region=us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
