"""The resources of a run of the suite: a temporary folder, processes, databases. `close` removes all."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from dispatcher_project.supervisor import guard
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from verification.proving.children import Children
from verification.proving.ports import free_ports
from verification.proving.postgresql import OwnPostgresql
from verification.proving.system import CannotProve, clean_environment

from .gpu import Gpu

OWN, SQLITE = "own", "sqlite"


class CannotMeasure(Exception):
    """A benchmark or contender can't be measured here; the message says why, in one line."""


class BenchEnvironment:
    """Folder, processes and databases of one run.

    database: ``own`` (a PostgreSQL started for this run), ``sqlite``, or a postgresql:// URL of a role that
    may create databases. gpu: the simulated GPU server of the run."""

    def __init__(self, database: str) -> None:
        self.database_kind = database
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._marker = f"{self.folder}#bench"
        environment = {**clean_environment(), guard.MARKER_VARIABLE: self._marker}
        self.children = Children(self.folder / "log", environment)
        self.ports = free_ports()
        self._postgresql: OwnPostgresql | None = None
        self._valkeys: list[EmbeddedValkey] = []
        self._databases: list[str] = []
        self._gpu: Gpu | None = None

    @property
    def gpu(self) -> Gpu:
        if self._gpu is None:
            self._gpu = Gpu(self.children, next(self.ports))
        return self._gpu

    @property
    def logs(self) -> Path:
        return self.children.logs

    def new_folder(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def valkey(self, name: str) -> EmbeddedValkey:
        """Start a Valkey for one contender, with the settings of `up`."""
        server = EmbeddedValkey(self.new_folder(f"valkey-{name}"))
        self._valkeys.append(server)
        server.start()
        return server

    def database(self, name: str) -> str:
        """Return the URL of a new, empty database; empty for SQLite. Raises CannotMeasure."""
        if self.database_kind == SQLITE:
            return ""
        database = f"bench_{name}_{secrets.token_hex(4)}"
        self._execute_on_server(f'create database "{database}"')
        self._databases.append(database)
        return urlsplit(self.server_url)._replace(path=f"/{database}").geturl()

    @property
    def server_url(self) -> str:
        """Return the URL of the PostgreSQL server. Raises CannotMeasure."""
        if self.database_kind != OWN:
            return self.database_kind
        if self._postgresql is None:
            self._postgresql = OwnPostgresql(self.logs / "postgresql.log", next(self.ports))
            try:
                self._postgresql.start()
            except CannotProve as error:
                raise CannotMeasure(str(error)) from None
        return self._postgresql.url

    @property
    def database_pids(self) -> list[int]:
        """Return the pids of the PostgreSQL that this run started; none for another one."""
        if self._postgresql is None or self._postgresql.pid is None:
            return []
        return [self._postgresql.pid]

    def drop(self, url: str) -> None:
        """Drop one of our databases, once its user has exited."""
        name = urlsplit(url).path.strip("/")
        if name in self._databases:
            self._databases.remove(name)
            self._execute_on_server(f'drop database if exists "{name}" with (force)')

    def close(self) -> None:
        """End and remove everything, the latest first, also after errors."""
        with contextlib.ExitStack() as ending:
            ending.callback(shutil.rmtree, self.folder, ignore_errors=True)
            ending.callback(guard.kill_marked, self._marker)
            if self._postgresql is not None:
                ending.callback(self._postgresql.stop)
            elif self._databases:
                ending.callback(self._drop_all)
            for valkey in self._valkeys:
                ending.callback(valkey.stop)
            ending.callback(self.children.close)

    def _drop_all(self) -> None:
        for name in list(self._databases):
            self.drop(f"postgresql:///{name}")

    def _execute_on_server(self, statement: str) -> None:
        import psycopg

        try:
            with psycopg.connect(self.server_url, autocommit=True, connect_timeout=5) as connection:
                connection.execute(statement.encode())
        except psycopg.Error as error:
            raise CannotMeasure(f"PostgreSQL: {str(error).strip().splitlines()[0]}") from None


def tail_of(log: Path, characters: int = 400) -> str:
    """Return the end of a log on one line."""
    with contextlib.suppress(OSError):
        return " ".join(log.read_text(errors="replace")[-characters:].split())
    return ""
