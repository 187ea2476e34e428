from __future__ import annotations

from django.db import models


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
