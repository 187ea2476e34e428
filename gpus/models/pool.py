from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from foundation.names import NameField
from gpus.models.option_rules import MAX_SECONDS
from gpus.protocol import PoolSpec, QueueAlgorithm


class Pool(models.Model):
    """Servers and models that belong together: the models share the servers' slots and one line."""

    name = NameField(primary_key=True)
    fleet = NameField(default="main", help_text="Redis hash tag: the unit of sharding.")
    algorithm = models.CharField(
        max_length=8,
        choices=[(a.value, a.value) for a in QueueAlgorithm],
        default=QueueAlgorithm.FAIR.value,
        help_text="fair: tenants take turns by GPU-seconds. fifo: one line for everybody. Switching is live.",
    )
    affinity_patience_seconds = models.FloatField(
        default=30.0,
        validators=[MinValueValidator(0), MaxValueValidator(MAX_SECONDS)],
        help_text="How long the head of the line may wait for a slot to stay with its warm model.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> PoolSpec:
        return PoolSpec(self.name, QueueAlgorithm(self.algorithm), self.affinity_patience_seconds)
