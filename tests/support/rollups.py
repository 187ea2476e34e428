"""Rollups in one step."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Max

from jobs.models import Event
from jobs.sweeps.rollups import EventHorizon, RollupsSweep
from tests.support.fakes import START, ManualClock, make_ports


class AtOnce(EventHorizon):
    """Horizon for tests whose transactions follow each other; test_rollups.py tests concurrent ones."""

    def advance(self) -> int:
        return Event.objects.aggregate(last=Max("id"))["last"] or 0


def sweep(at: datetime = START, **limits: int) -> int:
    return RollupsSweep(AtOnce(), **limits)(make_ports(clock=ManualClock(at))).looked
