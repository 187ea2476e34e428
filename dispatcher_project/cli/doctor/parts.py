"""Database, migrations, secrets, Redis, clocks, disk; beat, sweeps, a worker for each queue with work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from dispatcher_project.cli.command import about_redis
from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.screen import age, plain
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
MOST_NAMED = 6
SILENT_SECONDS = 15.0
LATE_PERIODS = 5
"""A sweep that did not run for so many of its periods, and for a minute more, is stuck."""
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
            "run `python3 manage.py migrate`, then restart the processes",
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
            "Callbacks of these tenants are not sent, and these servers get no job.",
            SECRETS_REMEDY,
        )
    elif stored:
        yield Finding(Level.OK, "secrets", f"{counted(len(stored), 'stored secret')} can be read")


StoredSecret = tuple[str, str]
"""A name for messages, and the encrypted text."""
SECRETS_REMEDY = (
    "start every process with the DJANGO_SECRET_KEY (or DISPATCHER_SECRET_KEY) that stored them; `up` keeps"
    " its own in secret_key of its data folder. If it is lost, `python3 manage.py create_key --tenant NAME"
    " --new-webhook-secret` makes a new one for callbacks; register the servers again with their headers"
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
    named = ", ".join(plain(name, 80) for name in unreadable[:MOST_NAMED])
    more = ", …" if len(unreadable) > MOST_NAMED else ""
    return f"{len(unreadable)} of {of} stored secrets were encrypted under another secret key ({named}{more})"


def redis(view: View) -> Iterator[Finding]:
    try:
        facts = view.redis_facts()
    except FAILURES as error:
        yield Finding(
            Level.ERROR,
            "redis",
            about_redis(error),
            "Jobs are accepted and none is started; what runs goes on and is written at its end.",
            "start it again; the index is rebuilt from the database by itself",
        )
        return
    name, version = _version(facts)
    yield Finding(Level.OK, "redis", f"{name} {version} answers")
    if _numbers(version) < OLDEST_REDIS:
        yield Finding(
            Level.WARNING,
            "redis version",
            f"{name} {version}",
            "The scripts were never tried on one that old.",
            f"use Redis {OLDEST_REDIS[0]}.{OLDEST_REDIS[1]} or newer, or Valkey",
        )
    yield from _memory(facts)
    if not facts.get("aof_enabled"):
        yield Finding(
            Level.WARNING,
            "redis persistence",
            "no append-only file",
            "After each restart of Redis the line is rebuilt from the database; nothing starts meanwhile.",
            "set `appendonly yes` and `appendfsync everysec`",
        )
    elif facts.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            Level.ERROR,
            "redis persistence",
            "its last write to the append-only file failed",
            "Redis refuses writes as long as this lasts.",
            "look at Redis' log and its disk",
        )


def _memory(facts: Mapping[str, Any]) -> Iterator[Finding]:
    policy, limit = str(facts.get("maxmemory_policy", "noeviction")), int(facts.get("maxmemory", 0) or 0)
    if policy != "noeviction":
        yield Finding(
            Level.ERROR,
            "redis eviction",
            f"maxmemory-policy is {policy}",
            "When memory is short Redis would throw away tickets and leases; jobs would wait unseen.",
            "set `maxmemory-policy noeviction`",
        )
    used = int(facts.get("used_memory", 0) or 0)
    if limit and used > limit * MEMORY_SHARE:
        yield Finding(
            Level.WARNING,
            "redis memory",
            f"{used / limit:.0%} of maxmemory are used",
            "Once it is full new jobs are accepted, but stand in no line until others have left it.",
            "raise maxmemory; about 1 kB per waiting job is needed",
        )


def _version(facts: Mapping[str, Any]) -> tuple[str, str]:
    if "valkey_version" in facts:
        return "Valkey", str(facts["valkey_version"])
    return "Redis", str(facts.get("redis_version", "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def layouts(view: View) -> Iterator[Finding]:
    """Which layout each fleet's index has, and who knows another one."""
    report = index_report()
    for fleet, state in report.states.items():
        check, others = f"layout {fleet}", report.others(state)
        knowing = counted(len(others), "process knows", "processes know")
        named = ", ".join(f"{one.kind} {one.name} ({one.layout})" for one in others[:MOST_NAMED])
        if state.next_layout is not None:
            yield Finding(
                Level.WARNING,
                check,
                f"being switched from {state.layout} to {state.next_layout}",
                "Nothing is started until it is done; what runs, runs on.",
                "`manage.py index switch` shows what it waits for; `manage.py index cancel` takes it back",
            )
        elif others:
            yield Finding(
                Level.WARNING,
                check,
                f"{state.layout} is in use; {knowing} another one: {named}",
                "They run nothing new and repair nothing; what they run comes to its end.",
                "restart the hosts of the other version: the index follows the last one by itself, or before"
                " that by `manage.py index switch`",
            )
        elif report.processes:
            yield Finding(Level.OK, check, f"{state.layout} is in use, all processes know it")


def index(view: View) -> Iterator[Finding]:
    """One of each fleet."""
    for fleet in view.ports.registry.fleets():
        try:
            whole = view.ports.leases(fleet).generation()
        except LayoutNotInUse as error:
            yield Finding(Level.WARNING, f"index {fleet}", str(error), "It can't be looked at from here.", "")
            continue
        except LeasingUnavailable as error:
            yield Finding(Level.ERROR, f"index {fleet}", str(error), "Nothing is started.", "see redis above")
            continue
        if whole is None:
            yield Finding(
                Level.ERROR,
                f"index {fleet}",
                "it is not whole: Redis was flushed, is new, or failed over",
                "Nothing is started until the sweeps worker has rebuilt it from the database.",
                "wait for some seconds; if it stays, see that beat and `queue_worker --queues sweeps` run",
            )
        else:
            yield Finding(Level.OK, f"index {fleet}", "whole")


def clocks(view: View) -> Iterator[Finding]:
    """This host's, Redis' and the database's: of three, the one that stands alone is wrong."""
    tolerated = settings.DISPATCHER.clock_tolerance_seconds
    watch = SharedClock(
        _HostClock(view.wall_clock),
        lambda: _redis_time(view),
        database_time,
        tolerance_seconds=min(SKEW_SECONDS, tolerated),
    )
    report = watch.compared()
    for name, seconds in report.off.items():
        stands_still = abs(seconds) > tolerated
        yield Finding(
            Level.ERROR if stands_still else Level.WARNING,
            "clocks",
            f"{name} is {age(abs(seconds))} {'ahead of' if seconds > 0 else 'behind'} the others",
            "No deadline passes and retention removes nothing until they agree again."
            if stands_still
            else f"From {tolerated:g} s on deadlines and retention stand still.",
            "keep all hosts' clocks by NTP (`timedatectl` says whether one is)",
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
            "make room; DISPATCHER_RETENTION_DAYS says how long finished jobs are kept",
        )


def metrics(view: View) -> Iterator[Finding]:
    token = settings.DISPATCHER.metrics_token
    if not token:
        yield Finding(
            Level.WARNING, "metrics", "/metrics answers nobody", "Prometheus reads nothing.", SET_A_TOKEN
        )
    else:
        who = "everybody" if token == "open" else "who sends its token"
        yield Finding(Level.OK, "metrics", f"/metrics answers {who}")


def web(view: View) -> Iterator[Finding]:
    url = settings.DISPATCHER.public_url
    try:
        status, body = view.web()
    except OSError as error:
        yield Finding(
            Level.WARNING,
            "web",
            f"does not answer at {url}: {plain(error, 120)}",
            "No job is accepted, and GPU servers can't push results; or only this host does not reach it.",
            "see that the web runs, and DISPATCHER_PUBLIC_URL",
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
        "Jobs are accepted, and none of these fleets starts." if degraded else "No job is accepted.",
        "see the findings above; each process reaches database and Redis by its own network",
    )


def beat(view: View) -> Iterator[Finding]:
    tick = sweep_ages(view.now).get(TICK)
    if tick is None or tick > SILENT_SECONDS:
        yield Finding(
            Level.ERROR,
            "beat",
            f"its last tick was {age(tick)} ago" if tick is not None else "it never ticked",
            "No repairs: lost workers are not noticed, retries and callbacks do not become due.",
            "see that `celery … beat` and `manage.py queue_worker --queues sweeps` run, and their logs",
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
                f"last ended {age(passed)} ago, its period is {age(entry.period_seconds)}",
                f"What jobs/sweeps/{name}.py repairs stays broken.",
                "look for `sweep_failed` in the log of the sweeps worker; a restart of it does no harm",
            )


def workers(view: View) -> Iterator[Finding]:
    consumed = view.consumed()
    if consumed is None:
        yield Finding(
            Level.ERROR,
            "broker",
            "no worker answers through it",
            "Either the broker of BROKER_URL is away, or no worker runs: then nothing is started.",
            "see that the broker runs, and `manage.py gpu_worker`",
        )
        return
    names = sorted({worker for served in consumed.values() for worker in served})
    yield Finding(Level.OK, "workers", f"{counted(len(names), 'answers', 'answer')}: {', '.join(names)}")
    for queue in (SWEEPS_QUEUE, CALLBACKS_QUEUE):
        if queue not in consumed:
            yield _nobody(queue, Level.ERROR, f"`manage.py queue_worker --queues {queue}`")
    waiting = set(
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("pool", flat=True).distinct()
    )
    for pool, host in sorted(
        set(Server.objects.values_list("pool_id", "host")), key=lambda pair: (pair[0], pair[1] or "")
    ):
        queue = queue_of(pool, host)
        if queue not in consumed:
            level = Level.ERROR if pool in waiting else Level.WARNING
            yield _nobody(queue, level, _gpu_worker(pool, host))


def _gpu_worker(pool: str, host: str | None) -> str:
    """What would consume the queue of this pool and host again."""
    if not host:
        return "`manage.py gpu_worker`"
    # a worker with a GPU of its own is another host at each start: none can be started under the old name
    pinned = Server.objects.filter(
        pool=pool, host=host, placements__endpoint__startswith=f"{STARTED_HERE}://"
    ).first()
    if pinned is None:
        return f"`manage.py gpu_worker --host {host}`"
    where = f" on {pinned.machine}" if pinned.machine else " on its machine"
    return (
        f"its worker again{where} with the arguments that it had (`manage.py gpu_worker --gpu … --name "
        f"{pinned.name}`); or forget the server (`DELETE /api/v1/admin/servers/{pinned.name}`, or delete it "
        "on the admin's list of servers)"
    )


def _nobody(queue: str, level: Level, command: str) -> Finding:
    return Finding(
        level,
        f"queue {queue}",
        "no worker consumes it",
        "What it stands for is not done; in a GPU queue's case the pool's slots stay idle.",
        f"start {command}",
    )
