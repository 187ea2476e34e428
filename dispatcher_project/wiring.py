"""Makes the production ports: clocks, Redis, the broker and the database. The only place that does."""

from __future__ import annotations

from django.conf import settings
from django.utils.module_loading import import_string

from foundation.database.connections import ConnectionPool
from gpus.leasing.clock import SharedClock, time_of
from gpus.leasing.store import RedisFleets
from gpus.protocol import SystemClock
from gpus.registry.processes import Layouts, read_index_states
from jobs.events.announce import Announcer
from jobs.ports import Ports, after_seconds
from jobs.reports.database_clock import database_time, last_database_time
from jobs.wakes import HintPublisher
from workflows.execution.reads import nodes_of
from workflows.execution.retried import retryable
from workflows.schedules.models import reopen


def make_production_ports() -> Ports:
    """Make new ports. A process uses `jobs.ports.production_ports`, which calls this once."""
    clock = SharedClock(
        SystemClock(),
        time_of(settings.REDIS_URL),
        database_time,
        last_database_time,
        tolerance_seconds=settings.DISPATCHER.clock_tolerance_seconds,
    )
    clock.keep_comparing(after_seconds)
    layouts = Layouts(read_index_states)
    hints = HintPublisher(lambda: import_string(settings.CELERY_APP))
    return Ports(
        clock=clock,
        clock_watch=clock,
        leases=RedisFleets(lambda: str(settings.REDIS_URL), layouts.refusal),
        send_wakes=hints.send_wakes,
        wake_callbacks=hints.wake_callbacks,
        wake_followers=hints.wake_followers,
        retryable=retryable,
        reopened=reopen,
        nodes_of=nodes_of,
        announce=Announcer(lambda: str(settings.REDIS_URL)),
        database=ConnectionPool().connection,
        layouts=layouts,
    )
