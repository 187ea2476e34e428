"""All checks in order, and the view of the running system that they read."""

from __future__ import annotations

import http.client
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from redis import RedisCluster

import jobs.ports
from dispatcher_project.celery import app
from dispatcher_project.cli.command import about_database
from dispatcher_project.cli.doctor import fleet, parts, stuck, workflows
from dispatcher_project.cli.doctor.artifacts import artifacts
from dispatcher_project.cli.doctor.finding import Check, Finding, Level, View
from dispatcher_project.cli.screen import plain
from gpus.leasing.connect import connect

WITHOUT_DATABASE: tuple[Check, ...] = (parts.redis, parts.disk, parts.metrics, parts.setting_names)
CHECKS: tuple[Check, ...] = (
    parts.database,
    parts.secrets,
    *WITHOUT_DATABASE,
    parts.layouts,
    parts.index,
    parts.clocks,
    parts.web,
    artifacts,
    parts.beat,
    parts.workers,
    fleet.models,
    fleet.runners,
    fleet.schemas,
    fleet.servers,
    fleet.quarantine,
    fleet.circuits,
    fleet.pauses,
    stuck.leaseless,
    stuck.unreachable,
    stuck.overdue,
    stuck.callbacks,
    stuck.dead_letters,
    workflows.end_notices,
    workflows.stalled_runs,
    workflows.failing_runs,
    workflows.silent_schedules,
    workflows.unanswered,
)
_ASK_WORKERS_SECONDS = 1.5
_ASK_WEB_SECONDS = 5.0


def examine(view: View, checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """Yield the findings of all checks in order. Without a database, only checks that need none run; a
    check that raises becomes a finding."""
    database_is_away = False
    for check in checks:
        if database_is_away and check not in WITHOUT_DATABASE:
            continue
        try:
            yield from check(view)
        except (DatabaseError, InterfaceError) as error:
            connection.close_if_unusable_or_obsolete()
            if database_is_away := check is parts.database or not _database_answers():
                yield Finding(
                    Level.ERROR,
                    "database",
                    about_database(error),
                    "No job is accepted; results of running jobs are stored once it is back.",
                    "start the database again",
                )
            else:
                yield _failed(check, error)
        except Exception as error:  # the other checks still run
            yield _failed(check, error)


def real_view() -> View:
    ports = jobs.ports.production_ports()
    return View(
        ports=ports,
        now=ports.clock.now(),
        redis_facts=redis_facts,
        consumed=consumed_queues,
        free_bytes=lambda path: shutil.disk_usage(path).free,
        data_folder=Path(settings.DATA_DIR),
        wall_clock=time.time,
        web=ask_web,
    )


def ask_web() -> tuple[int, Mapping[str, Any]]:
    """Status and body of the web's readiness. Raises OSError."""
    url = f"{settings.DISPATCHER.public_url}/readyz?strict=1"
    try:
        with urllib.request.urlopen(url, timeout=_ASK_WEB_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _object(error.read())
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _object(text: bytes) -> Mapping[str, Any]:
    """The JSON object in a body; empty if there is none, as in a proxy's page."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def redis_facts() -> Mapping[str, Any]:
    client: Any = connect(settings.REDIS_URL)
    try:
        if isinstance(client, RedisCluster):
            node = {"target_nodes": client.get_random_node()}
            facts, (seconds, micros) = client.info(**node), client.time(**node)
        else:
            facts, (seconds, micros) = client.info(), client.time()
    finally:
        client.close()
    return {**facts, "time": seconds + micros / 1e6}


def consumed_queues() -> Mapping[str, list[str]] | None:
    """Queue → workers, of the workers that answer in time; None if there are none."""
    try:
        answers = app.control.inspect(timeout=_ASK_WORKERS_SECONDS).active_queues()
    except Exception:  # kombu, redis-py and amqp have many exceptions
        return None
    if not answers:
        return None
    found: dict[str, list[str]] = {}
    for worker, queues in answers.items():
        for queue in queues:
            found.setdefault(queue["name"], []).append(worker)
    return found


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return False
    return True


def _failed(check: Check, error: Exception) -> Finding:
    name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
    return Finding(
        Level.ERROR, name, f"the check failed: {type(error).__name__}: {plain(error, 200)}", "", ""
    )
