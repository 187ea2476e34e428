"""Which hosts use the store of artifacts: a folder that is not shared belongs to one."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError
from django.db.models import Q

from artifacts.store.place import S3Place, read_place
from gpus.models import Process
from jobs.wakes import WORKFLOWS_QUEUE

PROCESS_SILENT = timedelta(seconds=60)
_KINDS = (Process.Kind.WEB, Process.Kind.GPU, Process.Kind.SWEEPS)
"""Processes that read or write artifacts: web processes serve them, GPU workers look for inputs and save
outputs, the sweeps list them. Nodes and other GPU servers use signed URLs."""
_HERE = socket.gethostname()
"""The host's name at the start, as in the names of its processes: a renamed host is still one host."""
_QUEUES = frozenset({WORKFLOWS_QUEUE})
"""Queues whose worker reads and writes artifacts, whatever its kind: maps of files, long outputs."""


def store_hosts(now: datetime, *, also_here: bool = False) -> list[str]:
    """Return the hosts whose processes use the store and showed a sign of life in the last minute, sorted.

    also_here: this process uses the store, too, whether or not it has a row.
    """
    rows = Process.objects.filter(~Q(queues="") | Q(kind__in=_KINDS), beat_at__gt=now - PROCESS_SILENT)
    hosts = {
        name.partition(":")[0]
        for name, kind, queues in rows.values_list("name", "kind", "queues")
        if kind in _KINDS or not _QUEUES.isdisjoint(queues.split("\n"))
    }
    return sorted(hosts | {_HERE} if also_here else hosts)


def check_store_hosts(
    app_configs: Any, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check of the settings with a database (`manage.py check --database default`, `migrate`)."""
    try:
        place = read_place(settings.DISPATCHER.artifact_store)
        if not databases or isinstance(place, S3Place) or place[1]:
            return []
        hosts = store_hosts(datetime.now(UTC))
    except DatabaseError:  # before the first migration
        return []
    if len(hosts) < 2:
        return []
    return [
        Warning(
            f"Artifacts are in a folder of one host, and processes on {len(hosts)} hosts use it: "
            f"{', '.join(hosts[:6])}. Uploads and files of results are refused.",
            hint="Set DISPATCHER_ARTIFACT_STORE to s3://BUCKET, or to a folder that all hosts share "
            "(?shared=1).",
            id="artifacts.W001",
        )
    ]
