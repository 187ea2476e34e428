"""External changes of the runs in hand: cancels, results that GPU servers pushed, servers that an operator
switched off, attempts that a sweep ended. A worker reads them each second, in one query of rows by their
keys, and at once when an announcement of one of its jobs arrives.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from django.db.models import QuerySet
from django.db.models import Value as Constant

from foundation.database import statements
from gpus.leasing.connect import connect
from gpus.models import Server
from gpus.protocol import DesiredState, Lease
from jobs.events.announce import SILENCE_SECONDS, channel, read_announcement
from jobs.models import Attempt, Job, PushedResult

_CANCELLED, _PUSHED, _OFF, _OVER = "cancelled", "pushed", "off", "over"


@dataclass(frozen=True, slots=True)
class Changes:
    """cancelled: ids of jobs whose cancel was requested. pushed: ids of attempts. off: names of servers.
    over: ids of attempts whose end is committed, whoever wrote it."""

    cancelled: frozenset[str]
    pushed: frozenset[str]
    off: frozenset[str]
    over: frozenset[str]


def changes_for(leases: Iterable[Lease]) -> Changes:
    runs = list(leases)
    found: dict[str, list[str]] = defaultdict(list)
    for kind, name in _changed(
        [lease.job_id for lease in runs],
        [lease.attempt_id for lease in runs],
        sorted({lease.server for lease in runs}),
    ):
        found[kind].append(name)
    return Changes(*(frozenset(found[kind]) for kind in (_CANCELLED, _PUSHED, _OFF, _OVER)))


def _rows(jobs: list[str], attempts: list[str], servers: list[str]) -> QuerySet[Any, Any]:
    cancelled = Job.objects.filter(id__in=jobs, cancel_requested_at__isnull=False)
    pushed = PushedResult.objects.filter(attempt_id__in=attempts)
    off = Server.objects.filter(name__in=servers, desired=DesiredState.OFF.value)
    over = Attempt.objects.filter(id__in=attempts).exclude(state__in=Attempt.LIVE)
    others = _as(_PUSHED, pushed, "attempt_id"), _as(_OFF, off, "name"), _as(_OVER, over, "id")
    return _as(_CANCELLED, cancelled, "id").union(*others, all=True)


def _as(kind: str, rows: QuerySet[Any, Any], name: str) -> QuerySet[Any, Any]:
    named: QuerySet[Any, Any] = rows.order_by().annotate(kind=Constant(kind)).values_list("kind", name)
    return named


_changed = statements.ReadAmong((Job, "id"), (PushedResult, "attempt_id"), (Server, "name"), rows=_rows)


log = structlog.get_logger()

LISTEN_AGAIN_SECONDS = 2.0
LISTEN_SLICE_SECONDS = 1.0


class Listener:
    """Calls `heard` with the ids of announced jobs, from a thread of its own. A Redis that is away costs a
    cancel one second and no more."""

    def __init__(self, url: str, heard: Callable[[Sequence[str]], None]) -> None:
        self._url = url
        self._heard = heard
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                log.warning("listener_lost_redis", error=str(error))
                self._stopping.wait(LISTEN_AGAIN_SECONDS)

    def _listen(self) -> None:
        client: Any = connect(self._url)
        with client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel())
            heard_at, pinged = time.monotonic(), False
            while not self._stopping.is_set():
                # as it came: of RESP 3's answer to a PING `get_message` makes nothing
                message = subscription.parse_response(block=False, timeout=LISTEN_SLICE_SECONDS)
                if message is not None:
                    heard_at, pinged = time.monotonic(), False
                    if message[0] == "message":
                        self._heard(read_announcement(message[2]))
                elif time.monotonic() - heard_at > SILENCE_SECONDS:
                    if pinged:
                        raise redis.TimeoutError("the subscription's server does not answer")
                    subscription.ping()
                    heard_at, pinged = time.monotonic(), True
