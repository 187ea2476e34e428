"""The processes of the dispatcher, and the key layout of the index that they share."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from foundation.names import NameField
from gpus.protocol import FIRST_LAYOUT


class FleetIndex(models.Model):
    """Which key layout a fleet's index in Redis has; without a row it is the first one.

    next_layout: the one it is being switched to, else None. switch: names that switch: what a process said of
    an earlier one does not count. time_us, time_seen_at: the fleet's time when it was last seen ahead of the
    time that rows go by, and when that was; None while it is not ahead.
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
    """A process of the dispatcher that says every few seconds that it lives, by the database's clock.

    name: of a GPU worker the one that its attempts have. layout: of the keys that its code knows. ready: by
    fleet, the switch of its index that may go on as far as this process is concerned. queues: that it
    consumes, one a line; of the web none.
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
        """Whether this switch may go on as far as this process is concerned. What a version of another
        shape wrote there agrees to nothing."""
        return isinstance(self.ready, dict) and self.ready.get(fleet) == switch
