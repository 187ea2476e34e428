"""The contenders (the dispatcher, the raw limit and the peers), all started, filled and stopped in the same
way."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from foundation.program import OWN_COMMAND
from verification.proving.children import Child
from verification.proving.system import UpSystem

from .environment import BenchEnvironment, CannotMeasure, tail_of
from .peers import Peer

DISPATCHER, RAW = "dispatcher", "raw"
_START_SECONDS = 180.0
_SETTLE_SECONDS = 2.0
_STOP_SECONDS = 100.0
_BATCH_JOBS = 500
_ANSWER_SECONDS = 60.0

Job = tuple[int, float]
"""Its number, and how long it runs on the GPU server, seconds."""


class Contender(Protocol):
    """A system under test. own_pids: the root processes of it and its broker. database_pids: those of a
    PostgreSQL that it uses."""

    name: str

    def start(self, slots: int) -> None: ...

    def warm_up(self) -> None:
        """Return once it works at its normal speed."""
        ...

    def fill(self, jobs: Sequence[Job]) -> None:
        """Put all jobs into its queue."""
        ...

    def check(self) -> None:
        """Raise CannotMeasure if it has exited."""
        ...

    def own_pids(self) -> list[int]: ...

    def database_pids(self) -> list[int]: ...

    def stop(self) -> None: ...


class Dispatcher:
    """`manage.py up` as users start it, by default without its demo fleet."""

    name = DISPATCHER

    def __init__(
        self,
        env: BenchEnvironment,
        *,
        environment: Mapping[str, str] | None = None,
        demo: bool = False,
        checkout: Path = ROOT,
    ) -> None:
        """environment: further variables. checkout: another one has its own `.venv`."""
        self._env, self._environment = env, dict(environment or {})
        self._checkout = checkout
        self._start = OWN_COMMAND if checkout == ROOT else (str(checkout / ".venv/bin/python"), "manage.py")
        self._options = () if demo else ("--no-demo",)
        self._up: Child | None = None
        self._database = ""
        self._log = Path()
        self._ready_at = 0.0
        self.system: UpSystem
        self.folder = Path()
        self.model = ""

    def start(self, slots: int = 0, *, folder: Path | None = None) -> None:
        """Start it and return once it is ready. Raises CannotMeasure.

        slots: of the one GPU server to register, 0 for none yet. folder: its data folder if not a new one."""
        env = self._env
        self.folder = folder or env.new_folder("up")
        environment = dict(self._environment)
        if folder is None:
            self._database = env.database(self.name)
        if self._database:
            environment["DATABASE_URL"] = self._database
        command = [*self._start, "up", *self._options, "--data-dir", str(self.folder)]
        name = f"up-{self.folder.name}"
        self._log = env.logs / f"{name}.log"
        self._up = env.children.start(
            name,
            *command,
            "--port",
            str(next(env.ports)),
            environment=environment,
            folder=self._checkout,
        )
        ready, until = self.folder / "up.json", time.monotonic() + _START_SECONDS
        while not ready.exists():
            self.check()
            if time.monotonic() > until:
                raise CannotMeasure(f"`up` was not ready in {_START_SECONDS:.0f} s")
            time.sleep(0.02)
        self.system, self._ready_at = UpSystem(ready), time.monotonic()
        if slots:
            self.register("bench", slots)
            self.model = "bench"

    def register(
        self, model: str, slots: int, *, server: str = "", path: str = "/run", **fields: Any
    ) -> None:
        """Register a server of the simulated GPU for a model in a pool of its own."""
        body = {
            "model": model,
            "server": server or f"{model}-1",
            "endpoint": f"{self._env.gpu.url}{path}",
            "slots": slots,
            "max_run_seconds": 300.0,
            "max_poll_time": 300.0,
            **fields,
        }
        self.ask("POST", "/admin/register", body)

    def warm_up(self) -> None:
        """During the first lease time of an index, each start is committed before anything is sent."""
        settled = self._ready_at + DispatcherSettings().lease_seconds + _SETTLE_SECONDS
        time.sleep(max(0.0, settled - time.monotonic()))

    def fill(self, jobs: Sequence[Job]) -> None:
        for at in range(0, len(jobs), _BATCH_JOBS):
            items = [self.request(number, seconds) for number, seconds in jobs[at : at + _BATCH_JOBS]]
            self.ask("POST", "/queue/submit-batch", {"jobs": items})

    def submit_singly(self, jobs: Sequence[Job]) -> None:
        """Submit one job after the other, over one connection. Raises CannotMeasure."""
        headers = {"Authorization": f"Bearer {self.system.operator_key}", "Content-Type": "application/json"}
        connection = http.client.HTTPConnection(urlsplit(self.system.url).netloc, timeout=_ANSWER_SECONDS)
        with contextlib.closing(connection):
            for number, seconds in jobs:
                body = json.dumps(self.request(number, seconds))
                connection.request("POST", "/api/v1/queue/submit", body, headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 202:
                    raise CannotMeasure(f"a submit was answered {answer.status}")

    def request(self, number: int, seconds: float) -> dict[str, Any]:
        """Return a submit's body."""
        return {"model": self.model, "payload": {"job": number, "seconds": seconds}}

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request and return its JSON. Raises CannotMeasure for an error answer."""
        parts = urlsplit(self.system.url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=_ANSWER_SECONDS)
        headers = {"Authorization": f"Bearer {self.system.operator_key}", "Content-Type": "application/json"}
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v1{path}", data, headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        if answer.status >= 300:
            raise CannotMeasure(f"the dispatcher answered {answer.status} to {path}: {text[:300]}")
        return json.loads(text)

    def start_worker(
        self, name: str, environment: Mapping[str, str] | None = None, *, options: Sequence[str] = ()
    ) -> Child:
        """Start another GPU worker; return once it takes jobs."""
        ready = self._env.folder / f"{name}-{self.folder.name}.ready"
        ready.unlink(missing_ok=True)  # left by a killed worker
        command = [
            *OWN_COMMAND, "gpu_worker", "--name", name, "--ready-file", str(ready), *options,
        ]  # fmt: skip
        settings = {**self.system.settings(), **self._environment, **(environment or {})}
        worker = self._env.children.start(f"{name}-{self.folder.name}", *command, environment=settings)
        until = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if not worker.is_running() or time.monotonic() > until:
                raise CannotMeasure(f"the worker {name} did not start")
            time.sleep(0.02)
        return worker

    def check(self) -> None:
        if self._up is None or not self._up.is_running():
            raise CannotMeasure(f"`up` has ended: {tail_of(self._log)}")

    def own_pids(self) -> list[int]:
        return [self._up.pid] if self._up else []

    def database_pids(self) -> list[int]:
        return self._env.database_pids if self._database else []

    @property
    def database_url(self) -> str:
        return self._database

    def stop(self, *, keep_database: bool = False) -> None:
        """Stop it like Ctrl-C."""
        if self._up is not None:
            self._up.stop(_STOP_SECONDS, by=signal.SIGINT)
            self._up = None
        if self._database and not keep_database:
            self._env.drop(self._database)
            self._database = ""


class Scripted:
    """A peer, or the raw limit: a script in `benchmarks/peers` with the verbs ``work`` and ``fill``."""

    def __init__(self, env: BenchEnvironment, peer: Peer) -> None:
        self._env, self._peer = env, peer
        self.name = peer.name
        self._worker: Child | None = None
        self._valkey: EmbeddedValkey | None = None
        self._database = ""
        self._environment: dict[str, str] = {}

    def start(self, slots: int) -> None:
        """Start its worker, which may still be loading when this returns; jobs filled in meanwhile wait."""
        env = self._env
        environment = {"BENCH_GPU": env.gpu.url, "BENCH_SLOTS": str(slots), **self._peer.environment}
        if self._peer.needs_postgresql:
            self._database = env.database(self.name)
            if not self._database:
                raise CannotMeasure(f"{self.name} needs PostgreSQL (--database)")
            environment["BENCH_DATABASE"] = self._database
        else:
            self._valkey = env.valkey(self.name)
            environment["BENCH_REDIS_SOCKET"] = self._valkey.socket
        self._environment = environment
        if self._peer.prepares:
            self._do("prepare", "")
        self._worker = env.children.start(self.name, *self._peer.command("work"), environment=environment)

    def warm_up(self) -> None:
        """It has full speed from its first job on."""

    def fill(self, jobs: Sequence[Job]) -> None:
        self._do("fill", json.dumps(jobs))

    def fill_graphs(self, **graphs: Any) -> None:
        """Let its script read these `benchmarks.peers.call.Graphs`."""
        self._do("fill", json.dumps(graphs))

    def check(self) -> None:
        if self._worker is None or not self._worker.is_running():
            raise CannotMeasure(f"{self.name} has ended: {tail_of(self._log)}")

    def own_pids(self) -> list[int]:
        valkey = self._valkey.pid if self._valkey else None
        return [pid for pid in (self._worker.pid if self._worker else None, valkey) if pid]

    def database_pids(self) -> list[int]:
        return self._env.database_pids if self._database else []

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        if self._valkey is not None:
            self._valkey.stop()
            self._valkey = None
        if self._database:
            self._env.drop(self._database)
            self._database = ""

    @property
    def _log(self) -> Path:
        return self._env.logs / f"{self.name}.log"

    def _do(self, verb: str, text: str) -> None:
        """Run a verb of the script to its end. Raises CannotMeasure."""
        orders = self._env.folder / f"{self.name}.{verb}.json"
        orders.write_text(text)
        child = self._env.children.start(
            f"{self.name}-{verb}", *self._peer.command(verb, str(orders)), environment=self._environment
        )
        code = child.process.wait()
        if code:
            log = self._env.logs / f"{self.name}-{verb}.log"
            raise CannotMeasure(f"{self.name} {verb} failed: {tail_of(log)}")
        os.unlink(orders)
