"""The dispatcher's processes, as they say themselves that they live; judged by the database's clock alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.functions import Now

from gpus.models import Process

FORGET_AFTER = timedelta(days=1)


def silent_after() -> timedelta:
    return timedelta(seconds=settings.DISPATCHER.process_silent_seconds)


def living() -> QuerySet[Process]:
    return Process.objects.filter(beat_at__gt=Now() - silent_after())


def is_known_elsewhere(name: str, layout: int) -> bool:
    """Whether a process of this name lived lately whose layout is another one."""
    return Process.objects.filter(name=name).exclude(layout=layout).exists()


def lives_elsewhere(name: str, layout: int) -> bool:
    """Whether a process of this name lives whose layout is another one."""
    return living().filter(name=name).exclude(layout=layout).exists()


def beat(name: str, kind: str, layout: int, ready: Mapping[str, str], queues: Iterable[str] = ()) -> None:
    """ready: by fleet, the switch that this process has nothing against."""
    said = {
        "kind": kind,
        "layout": layout,
        "ready": dict(ready),
        "queues": "\n".join(sorted(queues)),
        "beat_at": Now(),
    }
    if not Process.objects.filter(name=name).update(**said):
        Process.objects.create(name=name, started_at=Now(), **said)
    # What is said to come was written before the database's clock was set back: who died before that would
    # live for as long as the step. It counts as said now; who lives says it again soon.
    Process.objects.filter(beat_at__gt=Now()).update(beat_at=Now())


def sign_off(name: str) -> None:
    Process.objects.filter(name=name).delete()


def forget_silent() -> None:
    """Those that ended without signing off, long ago."""
    Process.objects.filter(beat_at__lt=Now() - FORGET_AFTER).delete()
