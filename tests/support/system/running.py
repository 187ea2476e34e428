"""A dispatcher that runs: `manage.py up` in forked processes (forking_up.py), with GPU servers of the test's
own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import psycopg
import redis

from dispatcher_project.supervisor.guard import marked_processes
from tests.support.database_copies import copy_to_file, create_on_server
from tests.support.ports import free_port
from tests.support.processes import is_alive
from tests.support.system.client import Client
from tests.support.system.gpu_server import GpuServer
from tests.support.system.programs import Program, output_of
from tests.support.waiting import wait_for

SHORT_WAITS = {
    "DISPATCHER_LEASE_SECONDS": "4",
    "DISPATCHER_RENEW_SECONDS": "1",
    "DISPATCHER_SWEEP_SECONDS": "1",
    "DISPATCHER_PROBE_SECONDS": "1",
    "DISPATCHER_RETRY_BASE_SECONDS": "0.1",
    "DISPATCHER_DEPLOY_GRACE_SECONDS": "30",
    "DISPATCHER_SCHEDULE_MIN_SECONDS": "1",
}
"""Short, so that a scenario waits seconds where an operator would wait for a quarter of a minute."""
_OURS = ("REDIS_URL", "BROKER_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE", "DISPATCHER_DATA_DIR")
_TAIL_LINES = 20


class System:
    """folder: its data folder. broker_url: in place of its own Valkey. environment: of this one only."""

    def __init__(
        self, folder: Path, *, broker_url: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.servers: list[GpuServer] = []
        self._database = own_database(migrated=True)
        if not self._database:
            copy_to_file(folder / "db.sqlite3")
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in _OURS},
            **SHORT_WAITS,
            **self._database,
            **({"BROKER_URL": broker_url} if broker_url else {}),
            "DISPATCHER_NO_BOOTSTRAP": "1",
            "DISPATCHER_DATA_DIR": str(folder),
            **(environment or {}),
        }
        self._output = folder.parent / f"{folder.name}.out"
        self._clients: list[Client] = []
        command = [
            sys.executable,
            "-m",
            "tests.support.system.forking_up",
            "--no-demo",
            "--data-dir",
            str(folder),
        ]
        with self._output.open("wb") as output:
            outputs = output.fileno(), output.fileno()
            self.process = Program([*command, "--port", str(free_port())], self.environment, outputs=outputs)
        try:
            wait_for(lambda: self._says() or self.process.poll() is not None, seconds=180, what="up.json")
            assert self.process.poll() is None, self._output.read_text()
        except BaseException:
            self._end()
            raise
        self.facts = self._says()
        self.operator = self.client(self.facts["api_key"])
        self.tenant = self.client(self.facts["tenant_key"])

    # -- what a scenario does -----------------------------------------------------------------------------

    def client(self, key: str) -> Client:
        client = Client(self.facts["url"], key)
        self._clients.append(client)
        return client

    @property
    def accepted(self) -> int:
        return sum(client.accepted for client in self._clients)

    def add_server(
        self, model: str, *, slots: int = 1, mode: str = "sync", push: bool = False, **fields: Any
    ) -> GpuServer:
        """A new model on a new server. push: whether it pushes results or waits for the poll."""
        server = GpuServer.start(model, slots=slots, mode=mode, push=push)
        self.servers.append(server)
        self.resize(server, slots, **(server.model_fields | fields))
        return server

    def resize(self, server: GpuServer, slots: int, **fields: Any) -> None:
        """Registers it (again), with so many of its slots."""
        self.operator.register(server.model, server.name, server.endpoint, slots, **fields)

    def pid(self, child: str) -> int:
        """0 while it is not there."""
        return int(self._says().get("pids", {}).get(child, 0))

    def signal(self, child: str, number: signal.Signals) -> int:
        """Returns the pid that got it."""
        pid = self.pid(child)
        os.kill(pid, number)
        return pid

    def wait_for_successor(self, child: str, pid: int) -> None:
        wait_for(lambda: self.pid(child) not in (0, pid), seconds=60, what=f"a new {child}")

    @contextlib.contextmanager
    def redis(self) -> Iterator[redis.Redis]:
        with contextlib.closing(redis.Redis.from_url(self.facts["redis_url"])) as client:
            yield client

    def manage(self, *arguments: str, check: bool = True) -> str:
        """What `manage.py` prints, run beside it."""
        return output_of([sys.executable, "manage.py", *arguments], self.environment, check=check)

    def start_worker(self, *arguments: str, data_folder: Path, log: IO[bytes]) -> Program:
        """A GPU worker beside its own, with a data folder of its own, as of another host. It has the
        environment file that all hosts share."""
        shared = json.loads((self.folder / "environment.json").read_text())
        environment = {
            **self.environment,
            **shared,
            "DISPATCHER_DATA_DIR": str(data_folder),
            "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.production",
            "DJANGO_SECRET_KEY": (self.folder / "secret_key").read_text().strip(),
        }
        command = [sys.executable, "manage.py", "gpu_worker", *arguments]
        return Program(command, environment, outputs=(log.fileno(), log.fileno()))

    def logs(self) -> Iterator[tuple[str, str]]:
        """(name, last lines) of `up` and of each child."""
        for path in (self._output, *sorted((self.folder / "log").glob("*.log"))):
            lines = path.read_text(errors="replace").splitlines()
            yield path.stem, "\n".join([line for line in lines if "request_" not in line][-_TAIL_LINES:])

    def stop(self) -> None:
        """As by Ctrl-C; fails if that leaves anything."""
        pids = self._says()["pids"]
        try:
            self.process.send_signal(signal.SIGINT)
            assert self.process.wait(60) == 0, self._output.read_text()
            assert not [name for name, pid in pids.items() if is_alive(pid)]
            assert marked_processes(f"{self.folder.resolve()}#") == []
        finally:
            self._end()

    def _end(self) -> None:
        """Whatever happened: its guard ends what a killed `up` leaves."""
        self.process.kill()
        self.process.wait()
        for server in self.servers:
            server.node.stop()
        drop_database(self._database)

    def _says(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((self.folder / "up.json").read_text()))
        return {}


def own_database(*, migrated: bool = False) -> dict[str, str]:
    """DATABASE_URL of a new database on the server that tests are given; empty for the embedded SQLite.

    migrated: if there is a migrated one, a copy of that.
    """
    server = os.environ.get("DISPATCHER_TEST_DATABASE_URL", "")
    if not server:
        return {}
    name = f"scenario_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        create_on_server(connection, name, migrated=migrated)
    before, question, query = server.partition("?")
    return {"DATABASE_URL": f"{before.rpartition('/')[0]}/{name}{question}{query}"}


def drop_database(database: dict[str, str]) -> None:
    if database:
        name = database["DATABASE_URL"].partition("?")[0].rpartition("/")[2]
        with psycopg.connect(os.environ["DISPATCHER_TEST_DATABASE_URL"], autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[call-overload]
