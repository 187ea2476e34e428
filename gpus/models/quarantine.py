from __future__ import annotations

from django.db import models
from django.db.models import Q


class QuarantinedSlot(models.Model):
    """A slot whose GPU may still be busy with an attempt that we no longer control.

    It leaves by proof only: a probe (`boot_id` changed, the attempt is not in `jobs`, too few
    `active_jobs`), or the model's run limit has passed. The row stays as evidence.
    """

    server = models.ForeignKey("gpus.Server", on_delete=models.CASCADE, related_name="quarantined")
    slot = models.PositiveIntegerField()
    attempt_id = models.CharField(max_length=26, blank=True, default="")
    follower_attempt_id = models.CharField(
        max_length=26,
        blank=True,
        default="",
        db_default="",
        help_text="What was claimed to run next on the slot, and may have begun behind the attempt.",
    )
    job_id = models.CharField(max_length=26, blank=True, default="")
    model = models.CharField(max_length=64, blank=True, default="")
    reason = models.CharField(max_length=200)
    boot_id = models.CharField(
        max_length=100, blank=True, default="", help_text="The server's boot when it began."
    )
    since = models.DateTimeField()
    until = models.DateTimeField(help_text="The run limit of the model: after it nothing can still run.")
    probed_at = models.DateTimeField(null=True, blank=True)
    refused_at = models.DateTimeField(
        null=True, blank=True, help_text="When nothing listened at the server's address."
    )
    refused_url = models.TextField(
        null=True,
        blank=True,
        editable=False,
        help_text="Where that was asked; an answer elsewhere proves nothing.",
    )
    freed_at = models.DateTimeField(null=True, blank=True)
    evidence = models.CharField(
        max_length=200, blank=True, default="", help_text="What proved the slot free."
    )

    class Meta:
        ordering = ["-since"]
        constraints = [
            models.UniqueConstraint(
                fields=["server", "slot", "attempt_id"],
                condition=Q(freed_at__isnull=True),
                name="one_open_quarantine_per_suspect",
            )
        ]
        indexes = [models.Index(fields=["freed_at", "probed_at"], name="quarantine_open_idx")]

    def __str__(self) -> str:
        return f"{self.server_id}/{self.slot}: {self.reason}"
