from __future__ import annotations

from jobs.models import Job


class DeadLetter(Job):
    """A FAILED job that no operator has dismissed: a filter on the table of jobs, not a table of its own."""

    class Meta:
        proxy = True
        verbose_name = "dead letter"
        verbose_name_plural = "dead letters"
