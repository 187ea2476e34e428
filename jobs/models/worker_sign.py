from __future__ import annotations

from django.db import models


class WorkerSign(models.Model):
    """A sign of life of one GPU worker process, written every two seconds while it holds leases.

    Redis alone can't tell a dead worker from one that Redis does not reach; this row can. The name is unique
    to the process, so that a restart is another worker.

    cut_off: attempts that it holds and could not renew lately.
    """

    worker = models.CharField(max_length=200, primary_key=True)
    at = models.DateTimeField()
    cut_off = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ["worker"]
        indexes = [models.Index(fields=["at"], name="worker_sign_at_idx")]

    def __str__(self) -> str:
        return self.worker
