"""A PostgreSQL for `--database own`, from this machine's binaries, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.embedded import die_with_parent
from verification.proving.system import CannotProve

_START_SECONDS = 30.0


class OwnPostgresql:
    """A PostgreSQL server, or its standby.

    As root it runs as the system's user ``postgres``: PostgreSQL refuses to run as root.

    of: the primary, if this is its asynchronous standby; None for a server of its own."""

    def __init__(self, log: Path, port: int, *, of: OwnPostgresql | None = None) -> None:
        self._log, self._port, self._primary = log, port, of
        self._folder = Path(tempfile.mkdtemp(prefix="prove-postgresql-"))
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
        self._binaries = _binaries()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int | None:
        """The pid of the postmaster."""
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server. Raises CannotProve."""
        if not self._data.exists():
            self._create()
        until = time.monotonic() + _START_SECONDS
        while not self._comes_up(until):
            if time.monotonic() > until:
                raise CannotProve(f"the trial's PostgreSQL did not start; see {self._log}")
            time.sleep(0.2)  # children of a killed postmaster still hold its memory

    def kill(self) -> None:
        """Kill the postmaster with SIGKILL; its children exit when they notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def cut_off(self) -> None:
        """On a standby: stop replication, so that it begins to lag."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
            until = time.monotonic() + _START_SECONDS
            while connection.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone():
                if time.monotonic() > until:
                    raise CannotProve(f"the standby still follows its primary; see {self._log}")
                time.sleep(0.05)

    def promote(self) -> None:
        """On a standby: accept writes from now on, with the data received so far."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 30)")

    def stop(self) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(signal.SIGINT)  # its fast shutdown
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _create(self) -> None:
        if self._user:
            postgres = pwd.getpwnam("postgres")
            os.chown(self._folder, postgres.pw_uid, postgres.pw_gid)
        if self._primary is None:
            self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust")
            return
        source = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "postgres"]
        self._run("pg_basebackup", "-D", str(self._data), "-R", "-X", "stream", "-c", "fast", *source)

    def _run(self, program: str, *arguments: str) -> None:
        """Run a program. Raises CannotProve."""
        command = [str(self._binaries / program), *arguments]
        made = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, **self._user)
        if made.returncode:
            raise CannotProve(f"{program} failed: {made.stderr.strip()[-500:]}")

    def _comes_up(self, until: float) -> bool:
        """Return False if it exited again."""
        import psycopg

        command = [
            str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self._port),
            "-h", "127.0.0.1", "-k", "", "-c", "max_connections=200",
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd="/",
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509
                start_new_session=True,
                **self._user,
            )
        while self.is_running and time.monotonic() < until:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return True
            except psycopg.OperationalError:
                time.sleep(0.1)
        return False


def _binaries() -> Path:
    found = shutil.which("postgres")
    if found:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    if not versions:
        raise CannotProve("--database own needs PostgreSQL's `postgres` and `initdb` on this machine")
    return versions[0].parent
