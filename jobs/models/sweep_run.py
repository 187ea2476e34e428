from __future__ import annotations

from django.db import models


class SweepRun(models.Model):
    """When a sweep last ran to its end; written every few seconds at most.

    looked, repaired: sums over the runs since the row was written before. One line is no sweep: how far
    the sums in `Rollup` go, in its note.
    """

    name = models.CharField(max_length=40, primary_key=True)
    at = models.DateTimeField()
    looked = models.PositiveIntegerField(default=0)
    repaired = models.PositiveIntegerField(default=0)
    note = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
