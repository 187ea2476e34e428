"""A real worker process on a real broker, with the stand-in GPU worker inside."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from dispatcher_project.celery_transport.broker import Amqp, register_transports
from dispatcher_project.settings.celery import celery_settings
from dispatcher_project.supervisor.data_folder import ROOT
from tests.support.system.programs import Program
from tests.support.waiting import wait_for


class WorkerBench:
    """redis_url: where orders and calls are kept. broker_url: what the worker itself is given."""

    def __init__(self, folder: Path, redis_url: str, *, broker_url: str = "") -> None:
        self.folder = folder
        self.redis: redis.Redis = redis.Redis.from_url(redis_url, decode_responses=True)
        self._database = sqlite3.connect(folder / "db.sqlite3")
        # the columns that the worker's own code reads; migrations belong to other tests
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS gpus_pool "
            "(name varchar(64) PRIMARY KEY, fleet varchar(64) NOT NULL DEFAULT 'main')"
        )
        self._database.commit()
        register_transports()
        self.app = Celery("test", amqp=Amqp, set_as_current=False)
        self.app.conf.update(celery_settings(redis_url))
        self._processes: list[Program | subprocess.Popen[bytes]] = []
        self.environment = os.environ | {
            "BROKER_URL": broker_url or redis_url,
            "STAND_IN_REDIS": redis_url,
            "DISPATCHER_TEST_DATABASE_URL": f"sqlite:///{folder}/db.sqlite3",
            "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.test",
            "PYTHONPATH": str(ROOT),
            "DISPATCHER_LOG_STYLE": "json",
        }

    def add_pool(self, name: str) -> None:
        self._database.execute("INSERT INTO gpus_pool (name) VALUES (?)", [name])
        self._database.commit()

    def remove_pool(self, name: str) -> None:
        self._database.execute("DELETE FROM gpus_pool WHERE name = ?", [name])
        self._database.commit()

    def start(
        self, *command: str, forked: bool = True, **environment: str
    ) -> Program | subprocess.Popen[bytes]:
        """``gpu_worker …`` or ``queue_worker …``; returns once it takes tasks. forked: it has imported more
        than it needs."""
        ready = self.folder / f"ready-{len(self._processes)}"
        line = [sys.executable, "-m", "tests.support.system.stand_in", *command, "--ready-file", str(ready)]
        given = self.environment | environment
        process: Program | subprocess.Popen[bytes]
        with self.log_file.open("ab") as log:
            if forked:
                process = Program(line, given, outputs=(log.fileno(), log.fileno()))
            else:
                process = subprocess.Popen(line, env=given, cwd=ROOT, stdout=log, stderr=log)
        self._processes.append(process)
        wait_for(lambda: ready.exists() or process.poll() is not None, what="ready file")
        assert process.poll() is None, self.log
        return process

    def wake(self, pool: str) -> None:
        """Sends a wake around the worker's own connection."""
        self.app.send_task("jobs.work", [pool], queue=f"gpu.{pool}")

    @property
    def log_file(self) -> Path:
        return self.folder / "worker.log"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def order(self, **order: Any) -> None:
        """What the next `work` does: `seconds`, `until`, `reports`, `deaf`."""
        self.redis.rpush("orders", json.dumps(order))

    def let(self, key: str) -> None:
        """The run that was ordered `until` this key ends."""
        self.redis.set(key, 1)

    def calls(self, name: str) -> list[list[Any]]:
        """What the stand-in was asked, by method name."""
        found = [json.loads(call) for call in self.redis.lrange("calls", 0, -1)]  # type: ignore[union-attr]
        return [call[1:] for call in found if call[0] == name]

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for ready in self.folder.glob("ready-*"):  # of a successor, which no test started itself
            with suppress(OSError, ValueError):
                os.kill(int(ready.read_text()), signal.SIGKILL)
        self._database.close()
        self.redis.close()
        self.app.close()
