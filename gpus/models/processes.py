"""Models of the dispatcher's processes (heartbeats) and of the key layout of each fleet's index."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from foundation.names import NameField
from gpus.protocol import FIRST_LAYOUT


class FleetIndex(models.Model):
    """The key layout of a fleet's index in Redis; without a row it is the first one.

    next_layout: during a switch, else None. switch: id of that switch. time_us, time_seen_at: the fleet's
    time when it was last ahead of the database's time, and when that was; None while it is not ahead.
    """

    fleet = NameField(primary_key=True)
    layout = models.PositiveSmallIntegerField(default=FIRST_LAYOUT, db_default=FIRST_LAYOUT)
    next_layout = models.PositiveSmallIntegerField(null=True, blank=True)
    switch = models.CharField(max_length=32, blank=True, default="", db_default="")
    changed_at = models.DateTimeField(default=None, null=True, db_default=Now())
    time_us = models.BigIntegerField(null=True, blank=True, default=None, editable=False)
    time_seen_at = models.DateTimeField(null=True, blank=True, default=None, editable=False)

    class Meta:
        ordering = ["fleet"]

    def __str__(self) -> str:
        return f"{self.fleet}: layout {self.layout}"


class Process(models.Model):
    """A process of the dispatcher, with a heartbeat every few seconds by the database's clock.

    name: for a GPU worker, as in its attempts. layout: key layout of its code. ready: by fleet, id of the
    index switch that it is ready for. queues: that it consumes, one per line; empty for web processes.
    """

    class Kind(models.TextChoices):
        GPU = "gpu"
        SWEEPS = "sweeps"
        CALLBACKS = "callbacks"
        WEB = "web"

    name = models.CharField(max_length=200, primary_key=True)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    layout = models.PositiveSmallIntegerField()
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    ready = models.JSONField(default=dict)
    queues = models.TextField(blank=True, default="", db_default="")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def is_ready(self, fleet: str, switch: str) -> bool:
        """Whether the process is ready for this index switch; a value of another version's format counts as
        no."""
        return isinstance(self.ready, dict) and self.ready.get(fleet) == switch
