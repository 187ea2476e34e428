"""GPU-seconds of a run, by node and in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from jobs.models import Attempt
from workflows.models import Node, Run

MAX_JOBS = 20_000
"""Jobs whose attempts one report adds up."""


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU-seconds of the ended attempts of all rounds. by_node: by key in the definition. is_partial: the run
    has more than `MAX_JOBS` jobs, and only the first ones count. Sub-runs are not included."""

    by_node: Mapping[str, float]
    is_partial: bool

    @property
    def total(self) -> float:
        return sum(self.by_node.values())


def cost_of(run: Run) -> Cost:
    """Add up a run's GPU-seconds: two queries, over at most `MAX_JOBS` jobs."""
    nodes = Node.objects.filter(run=run).exclude(job_id=None).order_by("id")
    beyond = nodes.values_list("id", flat=True)[MAX_JOBS : MAX_JOBS + 1].first()
    if beyond is not None:
        nodes = nodes.filter(id__lt=beyond)
    attempts = Attempt.objects.filter(job_id=OuterRef("job_id")).order_by().values("job_id")
    seconds = Subquery(attempts.annotate(sum=Sum("gpu_seconds")).values("sum"))
    rows = nodes.order_by().annotate(gpu=Coalesce(seconds, 0.0)).values_list("base").annotate(Sum("gpu"))
    return Cost({base: float(total) for base, total in rows}, beyond is not None)
