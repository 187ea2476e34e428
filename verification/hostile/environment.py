"""The environment of the attacks: the dispatcher, an honest GPU server, a neighbour (another tenant), the
attacker's tools."""

from __future__ import annotations

import json
import os
import random
import resource
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.signs import http_says_ok
from verification.hostile.gpu import CraftedReply, HostileServer, ReceivedRequest
from verification.hostile.measure import Observations, Sample
from verification.hostile.options import Options
from verification.hostile.wire import Answer, address_of, ask
from verification.proving.children import Child, Children
from verification.proving.fleet import Gpu
from verification.proving.ledger import Tail
from verification.proving.ports import free_ports
from verification.proving.system import (
    CannotProve,
    OwnSystem,
    RemoteSystem,
    System,
    UpSystem,
    clean_environment,
)
from verification.proving.terminal import say

RATE = 10.0
"""Submits of the neighbour per second."""
SHARED_SLOTS = 8
FILES = 1024
"""Limit of open files of each process, unless it raises that itself: Linux' default."""
_NICE = 10
"""Attacker and its servers would run on other machines: here the dispatcher has priority."""
_SLOW_NAMES = Path(__file__).parent / "slow_names"
_KINDS = {"submit": "submits", "read": "reads", "end": "ends", "callback": "callbacks"}


class Environment:
    """Made in steps by `open`; `close` ends everything started by then."""

    system: System
    gpu: Gpu
    neighbour: Child

    def __init__(self, options: Options) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.folder = (options.data_dir or Path(tempfile.mkdtemp(prefix="hostile-"))).resolve()
        if options.starts_its_own and not options.data_dir:
            self.folder.chmod(0o755)  # as an operator may have created it; attack s18 checks the result
        self.report = (options.report or self.folder / "hostile").resolve()
        self.report.mkdir(parents=True, exist_ok=True)
        self.children = Children(self.report / "log", clean_environment())
        self.prefix = f"hostile-{secrets.token_hex(3)}"
        self.shared_model = f"{self.prefix}-shared"
        self.attacker_key = self.neighbour_key = ""
        self.ports = free_ports()
        self._servers: list[tuple[str, HostileServer]] = []
        self._honest: dict[str, Child] = {}
        self._registered: list[str] = []
        self._made_keys: list[tuple[str, str]] = []
        self._tail: Tail | None = None
        self._seen = Observations()
        self._awaited: dict[tuple[str, str], float] = {}
        self._nice = os.nice(0)

    @property
    def url(self) -> str:
        return self.system.url

    @property
    def sees_processes(self) -> bool:
        """Return True if the processes of the dispatcher run on this machine and their settings are known."""
        return bool(self.system.settings())

    @property
    def data_dir(self) -> Path:
        """The dispatcher's data folder, from its settings."""
        return Path(self.system.settings()["DISPATCHER_DATA_DIR"])

    # -- start and stop ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start everything. Raises CannotProve."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
        self._start_system()
        self._make_keys()
        self.gpu = Gpu(
            name=self.shared_model, pool=self.shared_model, models=(self.shared_model,), slots=SHARED_SLOTS,
            mode="sync", push=False, port=next(self.ports), log=self.report / "gpu.jsonl",
        )  # fmt: skip
        self.gpu.child = self.children.start("gpu", *self.gpu.command())
        _wait(lambda: http_says_ok("127.0.0.1", self.gpu.port, "/health"), "the honest GPU server")
        self.register(
            self.shared_model, f"http://127.0.0.1:{self.gpu.port}/{self.shared_model}/run", slots=SHARED_SLOTS
        )
        self._start_neighbour()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._nice = os.nice(_NICE)

    def close(self) -> None:
        """End everything that was started, the dispatcher last."""
        if hasattr(self, "neighbour"):
            self.neighbour.stop()
        for name in list(self._registered):
            self.unregister(name)
        for _, server in self._servers:
            server.close()
        for tenant, prefix in self._made_keys:
            self.operator("POST", f"/admin/tenants/{tenant}/keys/{prefix}/revoke")
        if hasattr(self, "system"):
            self.system.stop()
        self.children.close()

    def _start_system(self) -> None:
        options = self.options
        if options.url:
            self.system = RemoteSystem(options.url, options.api_key)
        elif options.up_json is not None:
            self.system = UpSystem(options.up_json)
        else:
            say("starting a dispatcher of our own")
            path = f"{_SLOW_NAMES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
            environment = {"PYTHONPATH": path}
            if options.database:
                environment["DATABASE_URL"] = options.database
            self.system = OwnSystem(
                self.folder, self.children, environment=environment, redis_url="", database_url="",
                ports=self.ports,
            )  # fmt: skip

    def _make_keys(self) -> None:
        names = (self.options.attacker, self.options.neighbour)
        if not self.sees_processes:
            self.attacker_key, self.neighbour_key = (self.make_key(name) for name in names)
            return
        os.environ.update(self.system.settings())
        os.environ["DATABASE_URL"], os.environ["REDIS_URL"] = self.system.database_url, self.system.redis_url
        os.environ["DISPATCHER_LOG_LEVEL"] = "ERROR"
        import django

        django.setup()
        from django.db import connection

        from jobs.models import Tenant
        from jobs.operations.tenants import create_tenant

        for name in names:
            if not Tenant.objects.filter(name=name).exists():
                create_tenant(name)
        connection.close()
        self.attacker_key, self.neighbour_key = (self.make_key(name) for name in names)

    def make_key(self, tenant: str) -> str:
        """Return a new API key of the tenant, revoked at the end of the trial."""
        answer = self.operator("POST", f"/admin/tenants/{tenant}/keys", {"name": "prove --hostile"})
        said = answer.said
        if answer.status != 201:
            raise CannotProve(
                f"no key for the tenant {tenant}: {answer.label}; --tenants names two that exist"
            )
        self._made_keys.append((tenant, said["prefix"]))
        return str(said["key"])

    def revoke(self, key: str) -> Answer:
        """Revoke an API key that this environment created."""
        prefix = key.partition(".")[0]
        (tenant,) = (tenant for tenant, made in self._made_keys if made == prefix)
        return self.operator("POST", f"/admin/tenants/{tenant}/keys/{prefix}/revoke")

    def _start_neighbour(self) -> None:
        log = self.report / "neighbour.jsonl"
        log.unlink(missing_ok=True)
        plan = {"url": self.url, "key": self.neighbour_key, "model": self.shared_model, "rate": RATE}
        file = self.report / "neighbour.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps({**plan, "log": str(log)}))
        command = [sys.executable, "-m", "verification.hostile.neighbour", str(file)]
        self.neighbour = self.children.start("neighbour", *command)
        self._tail = Tail(log)

    # -- used by attacks -----------------------------------------------------------------------------------

    def operator(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request with an operator's key."""
        return ask(
            self.url, method, f"/api/v1{path}", key=self.system.operator_key, body=body, as_neighbour=True
        )

    def register(self, model: str, endpoint: str, *, slots: int = 2, **fields: Any) -> Answer:
        """Register a model and a server of the same name. fields: as `/admin/register` takes them."""
        body = {"model": model, "server": model, "endpoint": endpoint, "slots": slots, "max_run_seconds": 30}
        answer = self.operator("POST", "/admin/register", {**body, **fields})
        if answer.status in (200, 201) and model not in self._registered:
            self._registered.append(model)
        return answer

    def hostile_server(
        self,
        name: str,
        behave: Callable[[ReceivedRequest], CraftedReply | None],
        *,
        slots: int = 2,
        path: str = "/run",
        **fields: Any,
    ) -> tuple[str, HostileServer]:
        """Register a hostile server; return its model's name and the server."""
        model = f"{self.prefix}-{name}"
        server = HostileServer(behave)
        self._servers.append((model, server))
        answer = self.register(model, f"http://127.0.0.1:{server.port}{path}", slots=slots, **fields)
        if answer.status not in (200, 201):
            raise CannotProve(f"{model} could not be registered: {answer.label} {answer.body[:300]!r}")
        return model, server

    def honest_model(self, name: str, *, slots: int = 4, **fields: Any) -> str:
        """Register a model with a good server of its own, which the neighbour may use too; `end_model` ends
        it."""
        model = f"{self.prefix}-{name}"
        gpu = Gpu(
            name=model, pool=model, models=(model,), slots=slots, mode="sync", push=False,
            port=next(self.ports), log=self.report / f"{name}.jsonl",
        )  # fmt: skip
        child = self.children.start(name, *gpu.command())
        self._honest[model] = child
        _wait(lambda: http_says_ok("127.0.0.1", gpu.port, "/health"), model)
        self.register(model, f"http://127.0.0.1:{gpu.port}/{model}/run", slots=slots, **fields)
        return model

    def neighbour_gets(self, model: str, jobs: int, seconds: float) -> int:
        """Submit `jobs` jobs to the model as the neighbour; return how many are completed within
        `seconds`."""
        until = time.monotonic() + seconds
        body = {"jobs": [{"model": model, "payload": {"number": n, "seconds": 0.02}} for n in range(jobs)]}
        batch = ask(
            self.url,
            "POST",
            "/api/v1/queue/submit-batch",
            key=self.neighbour_key,
            body=body,
            as_neighbour=True,
        )
        waiting = {row["job_id"] for row in batch.rows if "job_id" in row}
        done = 0
        while waiting and time.monotonic() < until:
            for job_id in list(waiting):
                state = self.job(job_id, self.neighbour_key).said.get("status")
                if state in ("completed", "failed", "cancelled"):
                    waiting.discard(job_id)
                    done += state == "completed"
            time.sleep(0.1)
        return done

    def unregister(self, name: str) -> None:
        """Cancel the model's jobs, then unregister it; only switch it off if a slot is in quarantine."""
        self.cancel_all(name)
        if self.operator("DELETE", f"/admin/servers/{name}").status >= 400:
            self.operator("PATCH", f"/admin/servers/{name}", {"desired": "off"})
        self._registered.remove(name)

    def end_model(self, name: str) -> None:
        """Unregister a model of this trial and end its server."""
        model = f"{self.prefix}-{name}"
        if model in self._registered:
            self.unregister(model)
        if model in self._honest:
            self._honest.pop(model).stop()
        for one in [one for one in self._servers if one[0] == model]:
            one[1].close()
            self._servers.remove(one)

    def cancel_all(self, model: str, tenant: str | None = None) -> None:
        """Cancel all unfinished jobs of a model, by bulk calls of the API. tenant: only its jobs."""
        chosen = {"model": model, **({"tenant": tenant} if tenant else {})}
        for _ in range(30):
            said = self.operator("POST", "/admin/jobs/cancel", {"filter": chosen}).said
            if not said.get("remaining") or not said.get("done"):
                return

    def job(self, job_id: str, key: str | None = None) -> Answer:
        """Read a job. key: instead of the attacker's."""
        return ask(self.url, "GET", f"/api/v1/queue/jobs/{job_id}", key=key or self.attacker_key)

    def restart_gpu(self) -> None:
        """Restart the honest GPU server."""
        assert self.gpu.child is not None
        self.gpu.child.kill()
        self.gpu.child = self.children.start("gpu", *self.gpu.command())
        _wait(lambda: http_says_ok("127.0.0.1", self.gpu.port, "/health"), "the honest GPU server")

    def restart_web_if_needed(self) -> bool:
        """Restart the web process if it does not answer. Return True if it answers then."""
        pid = self.pids().get("web", 0)
        if pid and self.options.starts_its_own:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 40.0
        while not self.is_ready():
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def is_ready(self) -> bool:
        """Return True if `/readyz?strict=1` answers 200."""
        return http_says_ok(*address_of(self.url), "/readyz?strict=1")

    def observations(self) -> Observations:
        """Return all observations of the neighbour so far."""
        if self._tail is not None:
            for line in self._tail.read():
                if line["what"] == "await":
                    self._awaited[line["kind"], line["job"]] = line["at"]
                    continue
                self._awaited.pop((line["what"], line["job"]), None)
                sample = Sample(line["at"], line["took"], line["status"])
                getattr(self._seen, _KINDS[line["what"]]).append(sample)
        return self._seen

    def wait_until_calm(self) -> None:
        """Wait until the neighbour's jobs run. Raises CannotProve."""
        _wait(lambda: len(self.observations().ends) >= 3, "the neighbour", seconds=60.0)

    def unfinished(self, since: float, until: float) -> Observations:
        """Return the neighbour's jobs and callbacks of that time that have not ended yet."""
        self.observations()
        found, now = Observations(), time.time()
        for (kind, _), at in self._awaited.items():
            if since <= at < until:
                getattr(found, _KINDS[kind]).append(Sample(at, now - at, status=0))
        return found

    def pids(self) -> dict[str, int]:
        return self.system.pids()

    def logs(self) -> dict[str, str]:
        """Return the log texts of its processes, by file name."""
        found = self.data_dir.glob("log/*.log*")
        return {file.name: file.read_text(errors="surrogateescape") for file in found}

    def settings(self) -> Mapping[str, str]:
        return self.system.settings()


def _wait(sign: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not sign():
        if time.monotonic() > until:
            raise CannotProve(f"{what} did not start")
        time.sleep(0.05)
