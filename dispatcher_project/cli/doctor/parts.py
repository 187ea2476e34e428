"""Checks of database, migrations, secrets, Redis, clocks, disk, web, beat, sweeps and the queues' workers."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from dispatcher_project.cli.command import about_redis
from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.screen import age, plain
from foundation.program import command_line, page
from foundation.secrets import SecretUnreadable, decrypt
from foundation.texts import counted
from gpus.errors import LayoutNotInUse, LeasingUnavailable
from gpus.leasing.clock import SharedClock
from gpus.leasing.scripts import FAILURES
from gpus.models import Server
from gpus.protocol import STARTED_HERE
from jobs.api.metrics import SET_A_TOKEN
from jobs.domain.states import JobState
from jobs.models import Job, Tenant
from jobs.reports.database_clock import database_time
from jobs.reports.fleet import index_report
from jobs.sweeps.base import TICK, sweep_ages
from jobs.sweeps.registry import Sweeps
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE, queue_of

OLDEST_REDIS = (7, 0)
SKEW_SECONDS = 1.0
LOW_DISK_BYTES, NO_DISK_BYTES = 2 * 1024**3, 256 * 1024**2
MEMORY_SHARE = 0.8
MAX_NAMED = 6
SILENT_SECONDS = 15.0
LATE_PERIODS = 5
"""A sweep is late after so many of its periods and LATE_SECONDS."""
LATE_SECONDS = 60.0


def database(view: View) -> Iterator[Finding]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    missing = _unapplied()
    if missing:
        yield Finding(
            Level.ERROR,
            "migrations",
            f"{len(missing)} to apply: {', '.join(missing[:4])}",
            "The code expects tables or columns that the database does not have.",
            f"run `{command_line('migrate')}`, then restart the processes",
        )
    else:
        yield Finding(Level.OK, "database", f"{connection.vendor} answers, all migrations are applied")


def _unapplied() -> list[str]:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]


def secrets(view: View) -> Iterator[Finding]:
    stored = [*webhook_secrets(), *server_headers()]
    unreadable = unreadable_secrets(stored)
    if unreadable:
        yield Finding(
            Level.ERROR,
            "secrets",
            about_secrets(unreadable, len(stored)),
            "Callbacks of these tenants are not sent, and these servers get no jobs.",
            SECRETS_REMEDY,
        )
    elif stored:
        yield Finding(Level.OK, "secrets", f"{counted(len(stored), 'stored secret')} can be read")


StoredSecret = tuple[str, str]
"""A name for messages, and the encrypted text."""
SECRETS_REMEDY = (
    "start every process with the DJANGO_SECRET_KEY (or DISPATCHER_SECRET_KEY) that encrypted them; `up` has"
    " its own in the file secret_key of its data folder. If that key is lost,"
    f" `{command_line('create_key --tenant NAME --new-webhook-secret')}` replaces a webhook secret; register"
    " the servers again with their headers"
)


def webhook_secrets() -> list[StoredSecret]:
    """Return the webhook secret of each tenant that has one, by name."""
    rows = Tenant.objects.exclude(webhook_secret_encrypted="").order_by("name")
    stored = rows.values_list("name", "webhook_secret_encrypted")
    return [(f"webhook secret of {name}", text) for name, text in stored]


def server_headers() -> list[StoredSecret]:
    """Return the secret headers of each GPU server that has some, by name."""
    rows = Server.objects.exclude(headers_encrypted="").order_by("name")
    return [(f"headers of {name}", text) for name, text in rows.values_list("name", "headers_encrypted")]


def unreadable_secrets(stored: Sequence[StoredSecret]) -> list[str]:
    """Return the names of those that this process's secret key does not decrypt."""
    unreadable = []
    for name, text in stored:
        try:
            decrypt(text)
        except SecretUnreadable:
            unreadable.append(name)
    return unreadable


def about_secrets(unreadable: Sequence[str], of: int) -> str:
    """Return a sentence that names unreadable secrets. of: the number of all that were tried."""
    named = ", ".join(plain(name, 80) for name in unreadable[:MAX_NAMED])
    more = ", …" if len(unreadable) > MAX_NAMED else ""
    return f"{len(unreadable)} of {of} stored secrets were encrypted with another secret key ({named}{more})"


def redis(view: View) -> Iterator[Finding]:
    try:
        facts = view.redis_facts()
    except FAILURES as error:
        yield Finding(
            Level.ERROR,
            "redis",
            about_redis(error),
            "Jobs are accepted and none starts; running jobs continue, and their results are stored.",
            "start Redis again; the index is then rebuilt from the database",
        )
        return
    name, version = _version(facts)
    yield Finding(Level.OK, "redis", f"{name} {version} answers")
    if _numbers(version) < OLDEST_REDIS:
        yield Finding(
            Level.WARNING,
            "redis version",
            f"{name} {version}",
            "The Lua scripts were never tested on a version that old.",
            f"use Redis {OLDEST_REDIS[0]}.{OLDEST_REDIS[1]} or newer, or Valkey",
        )
    yield from _memory(facts)
    if not facts.get("aof_enabled"):
        yield Finding(
            Level.WARNING,
            "redis persistence",
            "no append-only file",
            "After each restart of Redis the queue is rebuilt from the database; no job starts meanwhile.",
            "set `appendonly yes` and `appendfsync everysec`",
        )
    elif facts.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            Level.ERROR,
            "redis persistence",
            "the last write to the append-only file failed",
            "Redis refuses writes as long as this lasts.",
            "check Redis' log and its disk",
        )


def _memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    policy, limit = str(facts.get("maxmemory_policy", "noeviction")), int(facts.get("maxmemory", 0) or 0)
    if policy != "noeviction":
        yield Finding(
            Level.ERROR,
            "redis eviction",
            f"maxmemory-policy is {policy}",
            "When memory runs short Redis would evict tickets and leases; jobs would wait unnoticed.",
            "set `maxmemory-policy noeviction`",
        )
    used = int(facts.get("used_memory", 0) or 0)
    if limit and used > limit * MEMORY_SHARE:
        yield Finding(
            Level.WARNING,
            "redis memory",
            f"{used / limit:.0%} of maxmemory is used",
            "Once it is full, new jobs are accepted but not queued until others have left the queue.",
            "raise maxmemory; about 1 kB per waiting job is needed",
        )


def _version(facts: Mapping[str, Any]) -> tuple[str, str]:
    if "valkey_version" in facts:
        return "Valkey", str(facts["valkey_version"])
    return "Redis", str(facts.get("redis_version", "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def layouts(view: View) -> Iterator[Finding]:
    """The key layout of each fleet's index, and the processes with another one."""
    report = index_report()
    for fleet, state in report.states.items():
        check, others = f"layout {fleet}", report.others(state)
        count = counted(len(others), "process has", "processes have")
        named = ", ".join(f"{one.kind} {one.name} ({one.layout})" for one in others[:MAX_NAMED])
        if state.next_layout is not None:
            yield Finding(
                Level.WARNING,
                check,
                f"being switched from {state.layout} to {state.next_layout}",
                "No job starts until it is finished; running jobs continue.",
                f"`{command_line('index switch')}` shows what it waits for; "
                f"`{command_line('index cancel')}` takes it back",
            )
        elif others:
            yield Finding(
                Level.WARNING,
                check,
                f"{state.layout} is in use; {count} another one: {named}",
                "They start and repair nothing; their running jobs end normally.",
                "restart the hosts of the other version: the index switches by itself after the last one, or"
                f" earlier by `{command_line('index switch')}`",
            )
        elif report.processes:
            yield Finding(Level.OK, check, f"{state.layout} is in use by all processes")


def index(view: View) -> Iterator[Finding]:
    """The index of each fleet."""
    for fleet in view.ports.registry.fleets():
        try:
            whole = view.ports.leases(fleet).generation()
        except LayoutNotInUse as error:
            yield Finding(Level.WARNING, f"index {fleet}", str(error), "It can't be checked from here.", "")
            continue
        except LeasingUnavailable as error:
            yield Finding(Level.ERROR, f"index {fleet}", str(error), "No job starts.", "see redis above")
            continue
        if whole is None:
            yield Finding(
                Level.ERROR,
                f"index {fleet}",
                "it is incomplete: Redis was flushed, is new, or failed over",
                "No job starts until the sweeps worker has rebuilt it from the database.",
                "wait a few seconds; if this stays, check that beat and "
                f"`{command_line('queue_worker --queues sweeps')}` run",
            )
        else:
            yield Finding(Level.OK, f"index {fleet}", "complete")


def clocks(view: View) -> Iterator[Finding]:
    """The clocks of this host, Redis and the database: two that agree outvote the third."""
    tolerated = settings.DISPATCHER.clock_tolerance_seconds
    watch = SharedClock(
        _HostClock(view.wall_clock),
        lambda: _redis_time(view),
        database_time,
        tolerance_seconds=min(SKEW_SECONDS, tolerated),
    )
    report = watch.fresh_report()
    for name, seconds in report.off.items():
        has_stopped = abs(seconds) > tolerated
        yield Finding(
            Level.ERROR if has_stopped else Level.WARNING,
            "clocks",
            f"{name} is {age(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'} the others",
            "No deadline passes and retention removes nothing until they agree again."
            if has_stopped
            else f"From {tolerated:g} s on, deadlines and retention stop.",
            "synchronize all hosts' clocks by NTP (`timedatectl` shows whether a host does)",
        )
    if report.agree:
        yield Finding(Level.OK, "clocks", f"agree within {age(SKEW_SECONDS)}")


class _HostClock:
    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_clock(), UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def _redis_time(view: View) -> float:
    return float(view.redis_facts()["time"])


def setting_names(view: View) -> Iterator[Finding]:
    """Variables that are no setting, but nearly: a misspelt one leaves the default without a word."""
    names = [f"DISPATCHER_{field.name.upper()}" for field in fields(settings.DISPATCHER)]
    for name in sorted(name for name in os.environ if name.startswith("DISPATCHER_") and name not in names):
        for meant in difflib.get_close_matches(name, names, 1, cutoff=0.93):
            yield Finding(
                Level.WARNING,
                "settings",
                f"{plain(name, 80)} is no setting; {meant} is one",
                "It has no effect, and the default holds.",
                "correct the name where the environment of the services is set, and restart them",
            )


def disk(view: View) -> Iterator[Finding]:
    if not view.data_folder.exists():
        return
    free = view.free_bytes(view.data_folder)
    level = Level.ERROR if free < NO_DISK_BYTES else Level.WARNING if free < LOW_DISK_BYTES else Level.OK
    what = f"{free / 1024**3:.1f} GiB free under {view.data_folder}"
    if level is Level.OK:
        yield Finding(level, "disk", what)
    else:
        yield Finding(
            level,
            "disk",
            what,
            "A full disk stops the database and Redis: no job is accepted then.",
            "free some space; DISPATCHER_RETENTION_DAYS is how long finished jobs are kept",
        )


def metrics(view: View) -> Iterator[Finding]:
    token = settings.DISPATCHER.metrics_token
    if not token:
        yield Finding(
            Level.WARNING,
            "metrics",
            "/metrics refuses every request",
            "Prometheus gets no data.",
            SET_A_TOKEN,
        )
    else:
        access = "open to all clients" if token == "open" else "protected by a token"
        yield Finding(Level.OK, "metrics", f"/metrics is {access}")


def web(view: View) -> Iterator[Finding]:
    url = settings.DISPATCHER.public_url
    try:
        status, body = view.web()
    except OSError as error:
        yield Finding(
            Level.WARNING,
            "web",
            f"does not answer at {url}: {plain(error, 120)}",
            "No job is accepted and no GPU server can push a result, unless only this host can't reach it.",
            "check that the web runs, and DISPATCHER_PUBLIC_URL",
        )
        return
    if status == 200:
        yield Finding(Level.OK, "web", f"is ready at {url}")
        return
    wrong = [name for name, check in dict(body.get("checks", {})).items() if not check.get("ok")]
    fleets = dict(body.get("checks", {})).get("redis", {}).get("fleets", {})
    wrong += [f"fleet {name}: {fleet.get('error')}" for name, fleet in fleets.items() if not fleet.get("ok")]
    degraded = body.get("status") == "degraded"
    yield Finding(
        Level.WARNING if degraded else Level.ERROR,
        "web",
        f"is {body.get('status', f'answering {status}')} at {url}: {plain(', '.join(wrong), 200)}",
        "Jobs are accepted, and none starts on these fleets." if degraded else "No job is accepted.",
        "see the findings above; the web may reach database and Redis by another network than this host",
    )


def beat(view: View) -> Iterator[Finding]:
    tick = sweep_ages(view.now).get(TICK)
    if tick is None or tick > SILENT_SECONDS:
        yield Finding(
            Level.ERROR,
            "beat",
            f"the last tick was {age(tick)} ago" if tick is not None else "it never ticked",
            "No repairs: lost workers are not noticed, and retries and callbacks wait.",
            f"check that beat and `{command_line('queue_worker --queues sweeps')}` run, and their logs",
        )
        return
    yield Finding(Level.OK, "beat", f"ticked {age(tick)} ago")
    yield from _late_sweeps(view)


def _late_sweeps(view: View) -> Iterator[Finding]:
    ages = sweep_ages(view.now)
    for name, entry in Sweeps().entries().items():
        passed = ages.get(name)
        if passed is not None and passed > LATE_PERIODS * entry.period_seconds + LATE_SECONDS:
            yield Finding(
                Level.ERROR,
                f"sweep {name}",
                f"last finished {age(passed)} ago; its period is {age(entry.period_seconds)}",
                f"The states that it repairs stay broken ({page('docs/reference/sweeps.md')}, {name}).",
                "look for `sweep_failed` in the log of the sweeps worker; restarting it is safe",
            )


def workers(view: View) -> Iterator[Finding]:
    consumed = view.consumed()
    if consumed is None:
        yield Finding(
            Level.ERROR,
            "broker",
            "no worker answers through it",
            "Either the broker of BROKER_URL does not answer, or no worker runs: then no job starts.",
            f"check that the broker and `{command_line('gpu_worker')}` run",
        )
        return
    names = sorted({worker for served in consumed.values() for worker in served})
    yield Finding(Level.OK, "workers", f"{counted(len(names), 'answers', 'answer')}: {', '.join(names)}")
    for queue in (SWEEPS_QUEUE, CALLBACKS_QUEUE):
        if queue not in consumed:
            yield _no_consumer(queue, Level.ERROR, f"`{command_line(f'queue_worker --queues {queue}')}`")
    waiting = set(
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("pool", flat=True).distinct()
    )
    for pool, host in sorted(
        set(Server.objects.values_list("pool_id", "host")), key=lambda pair: (pair[0], pair[1] or "")
    ):
        queue = queue_of(pool, host)
        if queue not in consumed:
            level = Level.ERROR if pool in waiting else Level.WARNING
            yield _no_consumer(queue, level, _gpu_worker(pool, host))


def _gpu_worker(pool: str, host: str | None) -> str:
    """The worker that would consume the queue of this pool and host."""
    if not host:
        return f"`{command_line('gpu_worker')}`"
    # a pinned worker is a new host at each start: the old name can't come back
    pinned = Server.objects.filter(
        pool=pool, host=host, placements__endpoint__startswith=f"{STARTED_HERE}://"
    ).first()
    if pinned is None:
        return f"`{command_line(f'gpu_worker --host {host}')}`"
    where = f" on {pinned.machine}" if pinned.machine else " on its machine"
    return (
        f"its worker again{where} with its arguments of before "
        f"(`{command_line(f'gpu_worker --gpu … --name {pinned.name}')}`); or remove the server "
        f"(`DELETE /api/v1/admin/servers/{pinned.name}`, or the admin's list of servers)"
    )


def _no_consumer(queue: str, level: Level, command: str) -> Finding:
    return Finding(
        level,
        f"queue {queue}",
        "no worker consumes it",
        "Its tasks wait; for a GPU queue, the pool's slots stay idle.",
        f"start {command}",
    )
