from __future__ import annotations

from jobs.models import Job


class DeadLetter(Job):
    """A FAILED job that an operator may retry or dismiss: a query, not a place."""

    class Meta:
        proxy = True
        verbose_name = "dead letter"
        verbose_name_plural = "dead letters"
