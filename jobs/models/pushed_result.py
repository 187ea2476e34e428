from __future__ import annotations

from django.db import models


class PushedResult(models.Model):
    """What a GPU server pushed for an attempt, kept until its holder finishes the attempt with it.

    No foreign key: a push may be earlier than its row. pushes, pushed_bytes: all that were read for it.
    """

    attempt_id = models.CharField(max_length=26, primary_key=True)
    job_id = models.CharField(max_length=26)
    body = models.JSONField()
    received_at = models.DateTimeField()
    pushes = models.PositiveIntegerField(default=1, db_default=1)
    pushed_bytes = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.attempt_id
